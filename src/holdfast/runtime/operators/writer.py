"""Hands elements or rows to the writer of a sink; every epoch has a writer of its own."""

from __future__ import annotations

import copy
import pickle
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from holdfast.api.sinks import OPENED, StagedRows, WriterContext
from holdfast.errors import HoldfastError
from holdfast.runtime.committable_codec import committable_codec
from holdfast.runtime.operators.base import Reported
from holdfast.runtime.operators.element import SinkOperator
from holdfast.runtime.report import Prepared
from holdfast.state.store.directories import file_name
from holdfast.types.columns.pickling import pickle_one

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from holdfast.api.sinks import Sink, SinkWriter
    from holdfast.runtime.plan import EpochPlan


class WriterOperator(SinkOperator):
    """A sink that writes in the task and publishes in a second step."""

    restored_state: tuple[Any, ...] = ()
    """State of the writers of earlier epochs."""
    _copy: Callable[[], Sink] | None = None
    """Copies the sink as it was before any writer used it."""

    @override
    def begin(self, epoch: EpochPlan | None, attempt_id: int, *, own_state: bool) -> None:
        super().begin(epoch, attempt_id, own_state=own_state)
        assert epoch is not None, "sinks never run at the sources"
        self._epoch = epoch
        self._attempt_id = attempt_id
        self.prepared: tuple[Prepared, ...] = ()
        self.writer: SinkWriter | None = None

    def _bind(self) -> Callable[..., Any]:
        sink = self._fresh_sink()
        self._codec = committable_codec(sink)
        epoch, plan = self._epoch, self.plan
        staging = epoch.staging if epoch.exactly_once else None
        context = WriterContext(
            job_id=epoch.job_id,
            uid=plan.uid,
            job_attempt=epoch.job_attempt,
            epoch=epoch.epoch,
            subtask=self.subtask,
            parallelism=plan.parallelism,
            attempt_id=self._attempt_id,
            checkpoint_id=epoch.next_checkpoint,
            exactly_once=epoch.exactly_once,
            schema=plan.input.schema,
            runtime=self.context,
            staging=staging,
            restored_state=self.restored_state,
        )
        with Reported(self, "in create_writer()"):
            self.writer = sink.create_writer(context)
            if self.writer.opened is not None and staging is not None:
                name = opened_name(plan.uid, context.unique_name)
                staging.note(name, self._codec.encode(self.writer.opened))
        return self.writer.write

    def process_rows(self, rows: pa.RecordBatch) -> None:
        """Hand rows to the writer."""
        assert self.writer is not None
        try:
            self.writer.write_rows(rows)
        except HoldfastError as error:
            raise self._located(error) from error
        except Exception as error:
            raise self._user_error(error) from error

    def finish(self) -> list[Any]:
        """Let the writer flush, and collect its committables."""
        assert self.writer is not None
        with Reported(self, "in flush()"):
            self.writer.flush()
        with Reported(self, "in prepare_commit()"):
            self.prepared = tuple(map(self._prepared, self.writer.prepare_commit()))
        return []

    def _prepared(self, committable: Any) -> Prepared:
        if isinstance(committable, StagedRows):
            return Prepared(self.plan.uid, rows=committable)
        return Prepared(self.plan.uid, self._codec.encode(committable))

    def snapshot_state(self) -> list[Any]:
        """Elements of the writer's own state."""
        assert self.writer is not None
        with Reported(self, "in snapshot_state()"):
            return list(self.writer.snapshot_state(self._epoch.next_checkpoint))

    def _fresh_sink(self) -> Sink:
        """The sink of the program: it may change as it writes, and every epoch begins anew."""
        with Reported(self, "copying the sink"):
            if self._copy is None:
                self._copy = _copier(self._function)
            return self._copy()

    @override
    def end_epoch(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the writer; does nothing the second time."""
        if self.is_open and self.writer is not None:
            self.is_open = False
            with Reported(self, "in close()"):
                self.writer.close()

    def abort(self) -> None:
        """Drop what was written; the epoch has failed."""
        if self.is_open and self.writer is not None:
            self.writer.abort()


def _copier(sink: Sink) -> Callable[[], Sink]:
    with suppress(Exception):
        return partial(pickle.loads, pickle.dumps(sink))
    # Classes of the program's script are not found by their names.
    with suppress(Exception):
        return partial(copy.deepcopy, copy.deepcopy(sink))
    # The last resort, as unpickling a class by value changes the class that is there.
    return partial(pickle.loads, pickle_one(sink))


def opened_name(uid: str, unique: str) -> str:
    """Name of the note of what a writer has opened, in an attempt named `unique`."""
    return f"{OPENED}{unique}@{file_name(uid)}"
