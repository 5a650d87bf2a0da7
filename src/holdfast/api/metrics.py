"""Metrics of user functions, which are part of the job's statistics.

Counters and histograms are summed over subtasks and epochs. A gauge is read at the end of every
epoch and has one value per subtask.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

M = TypeVar("M", "Counter", "Histogram")
"""A metric that can be looked up by its name."""

SAMPLE_SIZE = 1024
"""Number of values that a histogram samples for its quantiles."""


class Counter:
    """A number that is counted up and down."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        """Start at zero."""
        self.reset()

    def reset(self) -> None:
        """Return to zero."""
        self.count = 0

    def inc(self, n: int = 1) -> None:
        """Count up by `n`."""
        self.count += n

    def dec(self, n: int = 1) -> None:
        """Count down by `n`."""
        self.count -= n


class Histogram:
    """A distribution of numbers: exact count, sum and extremes, sampled quantiles."""

    __slots__ = ("count", "maximum", "minimum", "sample", "total")

    def __init__(self) -> None:
        """Start empty."""
        self.reset()

    def reset(self) -> None:
        """Drop all values."""
        self.count = 0
        self.total = 0.0
        self.minimum: float | None = None
        self.maximum: float | None = None
        self.sample: list[float] = []

    def update(self, value: float) -> None:
        """Add one number."""
        if len(self.sample) < SAMPLE_SIZE:
            self.sample.append(value)
        else:
            # A fixed stride through the ring: no random numbers on this path, and
            # coprime with its size, so that every place is renewed in turn.
            self.sample[(self.count * 389) % SAMPLE_SIZE] = value
        self.count += 1
        self.total += value
        if self.minimum is None or value < self.minimum:
            self.minimum = value
        if self.maximum is None or value > self.maximum:
            self.maximum = value

    def merge(self, other: Histogram) -> None:
        """Add the values of `other`."""
        if not other.count:
            return
        room = SAMPLE_SIZE - len(self.sample)
        self.sample.extend(other.sample[:room])
        for i, value in enumerate(other.sample[room:]):
            self.sample[((self.count + i) * 389) % SAMPLE_SIZE] = value
        self.count += other.count
        self.total += other.total
        lows = [x for x in (self.minimum, other.minimum) if x is not None]
        highs = [x for x in (self.maximum, other.maximum) if x is not None]
        self.minimum, self.maximum = min(lows), max(highs)

    def quantile(self, q: float) -> float | None:
        """The `q`-quantile of the sample, or None if it is empty."""
        if not self.sample:
            return None
        ordered = sorted(self.sample)
        return ordered[min(int(q * len(ordered)), len(ordered) - 1)]

    def __repr__(self) -> str:
        """Count, mean and extremes."""
        mean = self.total / self.count if self.count else None
        return f"Histogram(count={self.count}, mean={mean}, min={self.minimum}, max={self.maximum})"


@dataclass(slots=True)
class MetricValues:
    """The values of an operator's metrics: of one subtask's epoch, or of a whole job."""

    counters: dict[str, int] = field(default_factory=dict)
    gauges: dict[str, dict[int, float]] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)

    def merge(self, other: MetricValues) -> None:
        """Add the values of another subtask or a later epoch."""
        for name, count in other.counters.items():
            self.counters[name] = self.counters.get(name, 0) + count
        for name, values in other.gauges.items():
            self.gauges.setdefault(name, {}).update(values)
        for name, histogram in other.histograms.items():
            self.histograms.setdefault(name, Histogram()).merge(histogram)


class MetricGroup:
    """Registers the metrics of a function by name."""

    def __init__(self, prefix: str = "", root: MetricGroup | None = None) -> None:
        """An empty group, or a part of `root` whose names start with `prefix`."""
        self._prefix = prefix
        self._root = root or self
        if root is None:
            self._metrics: dict[str, Counter | Histogram | Callable[[], float]] = {}

    def add_group(self, name: str) -> MetricGroup:
        """A part of this group; its metrics are named `name.metric`."""
        return MetricGroup(f"{self._prefix}{name}.", self._root)

    def counter(self, name: str) -> Counter:
        """The counter of that name, created on first use."""
        return self._metric(name, Counter)

    def histogram(self, name: str) -> Histogram:
        """The histogram of that name, created on first use."""
        return self._metric(name, Histogram)

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Report the result of `read` at the end of every epoch."""
        known = self._root._metrics.get(self._prefix + name)
        if isinstance(known, Counter | Histogram):
            raise self._clash(name, known)
        self._root._metrics[self._prefix + name] = read

    def reset(self) -> None:
        """Start counters and histograms again; whoever holds them can go on using them."""
        for metric in self._root._metrics.values():
            if isinstance(metric, Counter | Histogram):
                metric.reset()

    def values(self, subtask: int) -> MetricValues:
        """The current values of the metrics."""
        values = MetricValues()
        for name, metric in self._root._metrics.items():
            if isinstance(metric, Counter):
                values.counters[name] = metric.count
            elif isinstance(metric, Histogram):
                values.histograms[name] = Histogram()
                values.histograms[name].merge(metric)
            else:
                values.gauges[name] = {subtask: metric()}
        return values

    def _metric(self, name: str, kind: type[M]) -> M:
        metric = self._root._metrics.setdefault(self._prefix + name, kind())
        if not isinstance(metric, kind):
            raise self._clash(name, metric)
        return metric

    def _clash(self, name: str, metric: object) -> ConfigurationError:
        known = type(metric).__name__ if isinstance(metric, Counter | Histogram) else "Gauge"
        return ConfigurationError(
            f"metric {self._prefix + name!r} is registered already, as a {known}; "
            "give the new one another name"
        )
