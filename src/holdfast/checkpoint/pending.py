"""One checkpoint on its way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.checkpoint.instructions import CheckpointKind, Participant, Payload


@dataclass(slots=True)
class PendingCheckpoint:
    """A checkpoint that has begun and neither completed nor been aborted."""

    id: int
    kind: CheckpointKind
    triggered_at: int
    participants: frozenset[Participant]
    payloads: dict[Participant, Payload] = field(default_factory=dict)
    """What has been handed in, by whom."""

    @property
    def finalizing(self) -> bool:
        """Whether all have acknowledged, so that its metadata is being written."""
        return len(self.payloads) == len(self.participants)

    def awaits(self, participant: Participant) -> bool:
        """Whether the participant belongs to it and has not acknowledged."""
        return participant in self.participants and participant not in self.payloads
