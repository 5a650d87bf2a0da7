"""Counters, gauges and histograms, alone and added up."""

from __future__ import annotations

import pickle
import random
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.api.metrics import SAMPLE_SIZE, Counter, Histogram, MetricGroup, MetricValues
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable


def histogram(values: Iterable[float]) -> Histogram:
    made = Histogram()
    for value in values:
        made.update(value)
    return made


def test_a_counter_counts_both_ways() -> None:
    counter = Counter()
    counter.inc()
    counter.inc(5)
    counter.dec()
    counter.dec(2)
    assert counter.count == 3


def test_an_empty_histogram_knows_nothing() -> None:
    empty = Histogram()
    assert empty.quantile(0.5) is None
    assert (empty.count, empty.minimum, empty.maximum) == (0, None, None)
    assert repr(empty) == "Histogram(count=0, mean=None, min=None, max=None)"


def test_a_histogram_is_exact_in_count_sum_and_extremes() -> None:
    numbers = histogram(range(10 * SAMPLE_SIZE))
    assert numbers.count == 10 * SAMPLE_SIZE
    assert numbers.total == sum(range(10 * SAMPLE_SIZE))
    assert (numbers.minimum, numbers.maximum) == (0, 10 * SAMPLE_SIZE - 1)
    assert len(numbers.sample) == SAMPLE_SIZE


def test_quantiles_of_a_small_histogram_are_exact() -> None:
    numbers = histogram([5, 1, 4, 2, 3])
    assert [numbers.quantile(q) for q in (0, 0.5, 0.99, 1)] == [1, 3, 5, 5]
    assert repr(numbers) == "Histogram(count=5, mean=3.0, min=1, max=5)"


def test_quantiles_of_a_large_histogram_are_near() -> None:
    values = list(range(50_000))
    random.Random(7).shuffle(values)
    middle = histogram(values).quantile(0.5)
    assert middle is not None
    assert abs(middle - 25_000) < 5_000


def test_later_values_replace_earlier_ones_in_the_sample() -> None:
    numbers = histogram([0.0] * SAMPLE_SIZE + [1.0] * SAMPLE_SIZE)
    assert set(numbers.sample) == {1.0}


@pytest.mark.parametrize(("first", "second"), [(3, 4), (0, 5), (5, 0), (1000, 100), (2000, 2000)])
def test_merged_histograms_hold_what_both_hold(first: int, second: int) -> None:
    one, other = histogram(range(first)), histogram(range(-second, 0))
    one.merge(other)
    everything = [*range(first), *range(-second, 0)]
    assert one.count == len(everything)
    assert one.total == sum(everything)
    assert (one.minimum, one.maximum) == (min(everything), max(everything))
    assert len(one.sample) == min(len(everything), SAMPLE_SIZE)
    assert set(one.sample) <= set(everything)
    assert other.count == second


def test_a_group_gives_the_same_metric_for_the_same_name() -> None:
    group = MetricGroup()
    assert group.counter("a") is group.counter("a")
    assert group.histogram("h") is group.histogram("h")
    assert group.counter("a") is not group.counter("b")


def test_names_in_groups_within_groups_are_joined() -> None:
    group = MetricGroup()
    inner = group.add_group("outer").add_group("inner")
    inner.counter("n").inc(2)
    inner.gauge("g", lambda: 1.5)
    inner.histogram("h").update(3)
    group.counter("n").inc()
    values = group.values(subtask=4)
    assert values.counters == {"n": 1, "outer.inner.n": 2}
    assert values.gauges == {"outer.inner.g": {4: 1.5}}
    assert values.histograms["outer.inner.h"].count == 1
    assert inner.values(4).counters == values.counters


def test_a_gauge_is_read_when_it_is_asked_and_may_be_replaced() -> None:
    group = MetricGroup()
    stage = [1.0]
    group.gauge("stage", lambda: stage[0])
    stage[0] = 2.0
    assert group.values(0).gauges == {"stage": {0: 2.0}}
    group.gauge("stage", lambda: 9.0)
    assert group.values(0).gauges == {"stage": {0: 9.0}}


@pytest.mark.parametrize("first", ["counter", "histogram", "gauge"])
@pytest.mark.parametrize("second", ["counter", "histogram", "gauge"])
def test_one_name_is_one_kind_of_metric(first: str, second: str) -> None:
    group = MetricGroup().add_group("g")

    def register(kind: str) -> Any:
        return group.gauge("x", lambda: 1.0) if kind == "gauge" else getattr(group, kind)("x")

    register(first)
    if first == second:
        register(second)
        return
    with pytest.raises(ConfigurationError, match=f"'g.x' is registered.* a {first.title()}"):
        register(second)


def test_subtasks_and_epochs_add_up() -> None:
    total = MetricValues()
    total.merge(MetricValues({"n": 1}, {"g": {0: 5.0}}, {"h": histogram([1])}))
    total.merge(MetricValues({"n": 2, "m": 1}, {"g": {1: 6.0}}, {"h": histogram([3])}))
    total.merge(MetricValues({}, {"g": {0: 7.0}}, {}))
    assert total.counters == {"n": 3, "m": 1}
    assert total.gauges == {"g": {0: 7.0, 1: 6.0}}
    assert total.histograms["h"].total == 4


def test_merging_does_not_change_what_was_reported() -> None:
    total, reported = MetricValues(), MetricValues({}, {"g": {0: 1.0}}, {"h": histogram([1])})
    total.merge(reported)
    total.merge(MetricValues({}, {"g": {1: 2.0}}, {"h": histogram([2])}))
    assert reported.histograms["h"].count == 1
    assert reported.gauges == {"g": {0: 1.0}}


def test_reported_values_cross_processes() -> None:
    values = MetricValues({"n": 1}, {"g": {0: 5.0}}, {"h": histogram([1, 2])})
    copy = pickle.loads(pickle.dumps(values))
    assert copy.counters == values.counters
    assert copy.histograms["h"].sample == [1, 2]
