"""Names of tables and of the directories of operators in a savepoint."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.savepoint.storage import operator_directory
from holdfast.state.store.directories import file_name
from holdfast.state.tables.names import table_name

words = st.text("aA1_- ~.ä", max_size=8) | st.text()


@pytest.mark.parametrize("name", ["my state", "a-b c_d 7", "counts", f"{'x' * 40} {'y' * 39}"])
def test_words_with_single_spaces_between_them_stay_as_they_are(name: str) -> None:
    assert table_name(name) == operator_directory(name) == name


@pytest.mark.parametrize(
    "name",
    [
        *("my  state", " my", "my ", " ", "", "My state", "my/state", "my state.", "..", "a\tb"),
        *("a\nb", "grüße vom meer", "gru\u0308ße", "my state~", f"{'x' * 40} {'y' * 40}"),
    ],
)
def test_other_names_get_those_that_have_no_spaces(name: str) -> None:
    assert table_name(name) == operator_directory(name) == file_name(name)
    assert " " not in table_name(name)


@given(words, words)
def test_names_of_tables_never_clash_and_stay_in_their_directory(one: str, other: str) -> None:
    for name in map(table_name, (one, other)):
        assert 0 < len(name.encode()) < 200
        assert name.isascii()
        assert name == name.strip()
        assert not set("/\\.\x00") & set(name)
        assert "  " not in name
    assert (table_name(one).lower() == table_name(other).lower()) == (one == other)


@given(words)
def test_names_of_earlier_releases_are_those_of_no_other_state(name: str) -> None:
    assert table_name(name) in (name, file_name(name))
