from __future__ import annotations

import pytest

from holdfast.config.parallelism import check_parallelism, default_max_parallelism
from holdfast.errors import ConfigurationError
from holdfast.state.key_groups import key_groups, subtask_of


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [(1, 128), (85, 128), (86, 256), (171, 256), (1000, 2048), (10000, 16384), (21846, 32768)],
)
def test_default_max_parallelism_is_flinks(parallelism: int, expected: int) -> None:
    assert default_max_parallelism(parallelism) == expected


@pytest.mark.parametrize(
    ("max_parallelism", "parallelism", "ranges"),
    [
        (10, 3, [range(4), range(4, 7), range(7, 10)]),
        (13, 2, [range(7), range(7, 13)]),
        (128, 3, [range(43), range(43, 86), range(86, 128)]),
    ],
)
def test_key_group_ranges_are_flinks(
    max_parallelism: int, parallelism: int, ranges: list[range]
) -> None:
    assert [key_groups(i, parallelism, max_parallelism) for i in range(parallelism)] == ranges


@pytest.mark.parametrize("max_parallelism", [1, 2, 7, 10, 128, 1000])
def test_every_key_group_lies_in_the_range_of_its_subtask(max_parallelism: int) -> None:
    for parallelism in range(1, max_parallelism + 1):
        owned = [key_groups(i, parallelism, max_parallelism) for i in range(parallelism)]
        assert [group for groups in owned for group in groups] == list(range(max_parallelism))
        for subtask, groups in enumerate(owned):
            for group in groups:
                assert subtask_of(group, parallelism, max_parallelism) == subtask


@pytest.mark.parametrize(
    ("parallelism", "max_parallelism", "said"),
    [
        (5, 4, "parallelism 5 is above max parallelism 4"),
        (0, 4, "at least 1"),
        (1, 0, "within 1..32768"),
        (1, 32769, "within 1..32768"),
    ],
)
def test_parallelism_out_of_bounds_is_refused(
    parallelism: int, max_parallelism: int, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        check_parallelism(parallelism, max_parallelism, "operator 'x'")
