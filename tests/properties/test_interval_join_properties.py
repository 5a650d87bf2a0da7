"""An interval join finds all pairs, once each, wherever epochs are cut, and keeps nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import event, given, settings
from hypothesis import strategies as st

from holdfast import EmbeddedRocksDBStateBackend, HashMapStateBackend
from tests.support.interval_joins import Element, Epoch, Join, brute_force
from tests.support.properties import searched

TIMES = st.integers(-25, 25)
SIDE = st.lists(st.tuples(st.sampled_from("ab"), TIMES), max_size=12)
BOUNDS = st.tuples(st.integers(-15, 15), st.integers(0, 15)).map(lambda b: (b[0], b[0] + b[1]))


@st.composite
def histories(draw: st.DrawFn) -> list[Epoch]:
    """Epochs with elements of both sides, numbered, and with watermarks that may stand still."""
    made = []
    number = 0
    for left, right, watermark in draw(
        st.lists(st.tuples(SIDE, SIDE, TIMES), min_size=1, max_size=5)
    ):
        elements = [Element(k, t, number + i) for i, (k, t) in enumerate([*left, *right])]
        number += len(elements)
        made.append(Epoch(elements[: len(left)], elements[len(left) :], watermark))
    return made


@searched(12, 60)
def test_a_join_is_what_brute_force_finds(examples: int) -> None:
    @settings(max_examples=examples)
    @given(
        epochs=histories(),
        bounds=BOUNDS,
        exclusive=st.tuples(st.booleans(), st.booleans()),
        late=st.booleans(),
        backend=st.sampled_from(
            [HashMapStateBackend(), HashMapStateBackend(), EmbeddedRocksDBStateBackend()]
        ),
        parallelism=st.sampled_from([1, 3]),
    )
    def check(
        epochs: list[Epoch],
        bounds: tuple[int, int],
        exclusive: tuple[bool, bool],
        late: bool,
        backend: HashMapStateBackend | EmbeddedRocksDBStateBackend,
        parallelism: int,
    ) -> None:
        lower, upper = bounds
        join = Join(
            lower - exclusive[0],
            upper + exclusive[1],
            exclusive=exclusive,
            late=late,
            backend=backend,
            parallelism=parallelism,
        )
        expected = brute_force(epochs, lower, upper)
        dropped = 0
        with TemporaryDirectory() as directory:
            run = join.start(Path(directory))
            for epoch in epochs:
                run.push_until(epoch.watermark, epoch.left, epoch.right)
                dropped += run.late_dropped()
            run.finish()
            assert run.kept() == 0
        assert Counter(join.pairs) == expected.pairs
        lost = expected.late_left.total() + expected.late_right.total()
        if late:
            assert Counter(map(tuple, join.late_left)) == expected.late_left
            assert Counter(map(tuple, join.late_right)) == expected.late_right
        assert dropped == (0 if late else lost)
        event(f"pairs: {bool(expected.pairs)}, late: {bool(lost)}")

    check()


@settings(max_examples=25)
@given(
    elements=st.lists(st.tuples(st.booleans(), st.sampled_from("ab"), TIMES), max_size=30),
    bounds=BOUNDS,
    one=st.lists(st.integers(0, 30), max_size=4),
    other=st.lists(st.integers(0, 30), max_size=4),
)
def test_where_epochs_are_cut_does_not_matter(
    elements: list[tuple[bool, str, int]],
    bounds: tuple[int, int],
    one: list[int],
    other: list[int],
) -> None:
    """Of elements none of which is late, since the watermark follows the earliest to come."""
    results = []
    for cuts in (one, other):
        join = Join(*bounds)
        with TemporaryDirectory() as directory:
            run = join.start(Path(directory))
            ends = sorted({min(cut, len(elements)) for cut in cuts} | {len(elements)})
            for start, end in zip([0, *ends], ends, strict=False):
                numbered = [
                    (is_left, Element(k, t, n))
                    for n, (is_left, k, t) in enumerate(elements[start:end], start)
                ]
                earliest = min((t for _, _, t in elements[end:]), default=26)
                run.push_until(
                    earliest - 1,
                    [element for is_left, element in numbered if is_left],
                    [element for is_left, element in numbered if not is_left],
                )
                assert run.late_dropped() == 0
        results.append(Counter(join.pairs))
    assert results[0] == results[1]
