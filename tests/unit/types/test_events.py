from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import pytest

from holdfast.types.event import Event, event_class

Click = event_class(("url", "n"))


def test_one_class_serves_all_events_with_the_same_columns():
    assert event_class(("url", "n")) is Click
    assert event_class(("n", "url")) is not Click


def test_a_field_is_read_by_attribute_by_name_and_by_position():
    click = Click(("/a", 1))
    assert click.url == click["url"] == click[0] == "/a"
    assert click[-1] == 1
    assert click[:1] == ("/a",)


def test_an_event_unpacks_and_equals_the_tuple_of_its_values():
    click = Click(("/a", 1))
    url, n = click
    assert (url, n) == click == ("/a", 1)
    assert hash(click) == hash(("/a", 1))
    assert isinstance(click, Event)


def test_its_repr_names_the_fields():
    assert repr(Click(("/a", 1))) == "Event(url='/a', n=1)"
    assert repr(event_class(("any name",))((1,))) == "Event('any name'=1)"


def test_replace_changes_a_copy():
    click = Click(("/a", 1))
    assert click._replace(n=2) == ("/a", 2)
    assert type(click._replace(n=2)) is Click
    assert click.n == 1
    with pytest.raises(ValueError, match="no field 'm'; there are url, n"):
        click._replace(m=2)


def test_asdict_gives_the_values_by_column_name():
    assert event_class(("url", "any name"))(("/a", 1))._asdict() == {"url": "/a", "any name": 1}


def test_make_checks_the_number_of_values():
    assert Click._make(["/a", 1]) == ("/a", 1)
    with pytest.raises(TypeError, match="expected 2 values, got 1"):
        Click._make(["/a"])


def test_a_column_that_cannot_be_an_attribute_keeps_its_name_in_brackets():
    columns = ("class", "any name", "__slots__", "_fields", "", "2x")
    event = event_class(columns)(range(6))
    assert event._fields == ("_0", "_1", "_2", "_3", "_4", "_5")
    assert [event[name] for name in columns] == list(range(6))
    assert event._1 == 1
    assert event._replace(**{"any name": 9, "_0": 8})[:2] == (8, 9)


def test_columns_named_like_methods_of_tuple_are_fields():
    event: Any = event_class(("count", "index", "_id"))((1, 2, 3))
    assert (event.count, event.index, event._id) == (1, 2, 3)


def test_of_columns_that_share_a_name_the_first_is_reached_by_it():
    event = event_class(("id", "id"))((1, 2))
    assert event.id == event["id"] == 1
    assert event._1 == event[1] == 2


def test_a_generated_attribute_never_hides_a_column_of_that_name():
    event = event_class(("any name", "_0"))((1, 2))
    assert event["_0"] == 2
    assert event._0 == 1


def test_an_unknown_name_is_a_key_error_and_an_unknown_attribute_an_attribute_error():
    with pytest.raises(KeyError, match="nope"):
        Click(("/a", 1))["nope"]
    with pytest.raises(AttributeError, match="nope"):
        _ = Click(("/a", 1)).nope


def test_events_are_immutable():
    click: Any = Click(("/a", 1))
    with pytest.raises(AttributeError):
        click.n = 2
    with pytest.raises(AttributeError):
        click.other = 2


def test_events_and_their_class_pickle():
    click = Click(("/a", 1))
    restored = pickle.loads(pickle.dumps(click))
    assert (type(restored), restored) == (Click, click)
    assert pickle.loads(pickle.dumps(Click)) is Click
    assert pickle.loads(pickle.dumps(Event)) is Event
    assert type(copy.deepcopy(click)) is Click


def test_a_process_that_never_saw_the_class_reads_the_event():
    data = pickle.dumps(event_class(("any name", "m"))((1, 2)))
    program = f"import pickle; e = pickle.loads({data!r}); print(e, e['any name'])"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "Event('any name'=1, m=2) 1\n"


def test_an_event_matches_a_class_pattern():
    match Click(("/a", 1)):
        case Click(url=url, n=1):
            assert url == "/a"
        case _:
            pytest.fail("did not match")
