"""Online model: a model for every key, kept in state, that learns from every event.

The power that a machine draws grows with its load, on every machine in its own way. The model
is a straight line through the readings so far, by least squares; five numbers are enough to
move it. A reading is compared with what the line predicts, and then learnt from, unless it is
far off: that is an alarm.

Run it with `make example-online_model`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast import FlatMapFunction, StreamExecutionEnvironment, ValueStateDescriptor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from holdfast import DataStream, RuntimeContext

READINGS = [
    *(("press", load, 10 + 2.0 * load) for load in (1.0, 2.0, 3.0, 5.0)),
    *(("mill", load, 5 + 0.5 * load) for load in (2.0, 8.0, 4.0)),
    ("press", 10.0, 30.5),
    ("mill", 6.0, 13.0),
    ("press", 20.0, 35.0),
    ("mill", 10.0, 10.0),
]


class Line(NamedTuple):
    """The model: means of both, and how they vary, alone and together."""

    points: int = 0
    mean_x: float = 0.0
    mean_y: float = 0.0
    var_x: float = 0.0
    cov: float = 0.0

    def predict(self, x: float) -> float:
        """What the line says of `x`."""
        slope = self.cov / self.var_x if self.var_x else 0.0
        return self.mean_y + slope * (x - self.mean_x)

    def learn(self, x: float, y: float) -> Line:
        """The line with one more point."""
        points, dx = self.points + 1, x - self.mean_x
        mean_x, mean_y = self.mean_x + dx / points, self.mean_y + (y - self.mean_y) / points
        var_x, cov = self.var_x + dx * (x - mean_x), self.cov + dx * (y - mean_y)
        return Line(points, mean_x, mean_y, var_x, cov)


class Watch(FlatMapFunction):
    """Gives the alarm when a reading is a fifth off, once the line has three points."""

    def open(self, ctx: RuntimeContext) -> None:
        """Get hold of the machine's model."""
        self.model = ctx.get_state(ValueStateDescriptor("model", Line))

    def flat_map(self, value: Any) -> Iterator[str]:
        """Predict, compare, learn."""
        model = self.model.value() or Line()
        expected = model.predict(value.load)
        if model.points >= 3 and abs(value.power - expected) > 0.2 * abs(expected):
            yield f"{value.machine} draws {value.power:.1f}, expected {expected:.1f}"
        else:
            self.model.update(model.learn(value.load, value.power))


def alarms(readings: DataStream) -> DataStream:
    """The job: readings in, alarms out."""
    return readings.key_by("machine").flat_map(Watch()).uid("watch")


def main() -> None:
    """Run the job on the data above."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1).set_max_events_per_epoch(4)
    readings = env.from_collection(READINGS, "machine string, load double, power double")
    for alarm in alarms(readings).execute_and_collect("online-model"):
        print(alarm)


if __name__ == "__main__":
    main()
