"""Finds how far event time had advanced in a snapshot, for the program that continues it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from holdfast.api.time import MIN_WATERMARK
from holdfast.job.watermarks import EventTimes

if TYPE_CHECKING:
    from holdfast.checkpoint.files.metadata import CheckpointMetadata
    from holdfast.job.model import JobPlan
    from holdfast.job.watermarks import TimeSource

logger = logging.getLogger("holdfast")


def event_times_of(metadata: CheckpointMetadata, plan: JobPlan) -> EventTimes:
    """How far event time had advanced, without the time sources that begin again.

    Warns of those for which anything had been reached.
    """
    stored = metadata.event_times
    positions = {source.uid for source in metadata.sources}
    had_time = {uid for uid, time in stored.operators.items() if time != MIN_WATERMARK}
    rewound = set()
    for source in plan.time.sources:
        held = sorted(
            uid for uid, feeds in plan.time.feeds.items() if source.uid in feeds and uid in had_time
        )
        if source.uid not in stored.sources:
            if held:
                logger.warning(
                    "the watermark of %s begins at the minimum, and so do those of the operators "
                    "behind it, which the snapshot has (%s): it has no watermark of this uid. "
                    "Unless the source is new, give it its old uid back",
                    _described(source),
                    ", ".join(map(repr, held)),
                )
        elif not source.reads <= positions:
            rewound.add(source.uid)
            if stored.sources[source.uid] != MIN_WATERMARK:
                logger.warning(
                    "the watermark of %s begins at the minimum: it reads a source that the "
                    "snapshot has no position of, and that is read from its beginning",
                    _described(source),
                )
    times = EventTimes(stored.sources, stored.quiet_ms, stored.operators)
    return times.without(rewound)


def _described(source: TimeSource) -> str:
    made_at = f", made at {source.made_at}" if source.made_at else ""
    return f"{source.name!r} (uid {source.uid!r}{made_at})"
