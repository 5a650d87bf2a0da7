"""A sink function with transactions of its own.

    class Orders(TwoPhaseCommitSinkFunction):
        def begin_transaction(self) -> str:      # on every subtask, in every epoch with elements
            return self.client.begin()
        def invoke(self, transaction, value, context):
            self.client.put(transaction, value)
        def pre_commit(self, transaction):       # at the end of the epoch: make it durable
            self.client.prepare(transaction)
        def commit(self, transaction):           # when its checkpoint is complete
            self.client.commit(transaction)
        def abort(self, transaction):
            self.client.abort(transaction)

A transaction is any object that names it. It goes into checkpoints, encoded by its type:
what `begin_transaction` is annotated with, or what `transaction_type` says. `commit` runs
on another copy of the function than `invoke`, perhaps in another process, perhaps twice:
it must find the transaction by its name, do nothing if that is committed already, and
succeed in the end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic

from holdfast.api.functions import Function
from holdfast.api.sinks import Committer, Sink, SinkWriter
from holdfast.api.streams.output_type import return_annotation
from holdfast.api.type_variables import IN, TXN, T
from holdfast.errors import TypeDeclarationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from holdfast.api.functions import RuntimeContext, SinkContext
    from holdfast.api.sinks import CommitRequest, WriterContext


class TwoPhaseCommitSinkFunction(Function, ABC, Generic[IN, TXN]):
    """Writes every epoch in a transaction, which is committed with its checkpoint."""

    transaction_type: Any = None
    """Type of the transactions, as for a state; if there is none, the annotation says it.

    That is a builtin, a container, a dataclass, `NamedTuple`, `TypedDict` or `msgspec.Struct`, a
    Spark or Arrow type, or an object with `serialize` and `deserialize`. `Any` has transactions
    pickled: then code runs when a checkpoint is read, and whoever can write to checkpoint
    storage decides which.
    """

    @abstractmethod
    def begin_transaction(self) -> TXN:
        """Begin one; after `open`, before the first element of an epoch."""

    @abstractmethod
    def invoke(self, transaction: TXN, value: IN, context: SinkContext) -> None:
        """Take one element."""

    def flush(self) -> None:
        """Bring out what `invoke` holds back; before `pre_commit`."""

    @abstractmethod
    def pre_commit(self, transaction: TXN) -> None:
        """Make it durable, so that a later `commit` cannot fail for want of it."""

    @abstractmethod
    def commit(self, transaction: TXN) -> None:
        """Publish it; idempotent."""

    @abstractmethod
    def abort(self, transaction: TXN) -> None:
        """Drop it; idempotent, and called for those not yet pre-committed as well."""

    def recover_and_commit(self, transaction: TXN) -> None:
        """Publish it after a recovery; it may have been published before."""
        self.commit(transaction)

    def recover_and_abort(self, transaction: TXN) -> None:
        """Drop one that a process left open which is gone."""
        self.abort(transaction)


class TwoPhaseCommitSink(Sink):
    """Runs a `TwoPhaseCommitSinkFunction`."""

    notes_opened = True

    def __init__(self, function: TwoPhaseCommitSinkFunction) -> None:
        """The sink of `function`.

        Raises:
            TypeDeclarationError: The type of its transactions is not known.
        """
        self.function = function
        self.committable_type = _transaction_type(function)

    @property
    def name(self) -> str:
        """Name of the function's class."""
        return type(self.function).__name__

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """A writer with a transaction of its own."""
        return _TransactionWriter(self.function, context)

    def create_committer(self, runtime: RuntimeContext) -> Committer:
        """A committer that has its own copy of the function."""
        return _TransactionCommitter(self.function, runtime)


def _transaction_type(function: TwoPhaseCommitSinkFunction) -> Any:
    if function.transaction_type is not None:
        return function.transaction_type
    annotation = return_annotation(function.begin_transaction)
    if annotation in (None, Any, object):
        name = type(function).__name__
        raise TypeDeclarationError(
            f"{name} does not say of what type its transactions are, and checkpoints hold them; "
            f"annotate what {name}.begin_transaction returns, or set {name}.transaction_type to a "
            "builtin, a dataclass, a NamedTuple, a TypedDict, a Spark type or an object with "
            "serialize and deserialize. To have transactions pickled, so that code runs when a "
            "checkpoint is read, set it to typing.Any"
        )
    return annotation


class _TransactionWriter(SinkWriter):
    def __init__(self, function: TwoPhaseCommitSinkFunction, context: WriterContext) -> None:
        self._function = function
        function.open(context.runtime)
        self._is_open = True
        try:
            self._transaction = function.begin_transaction()
        except BaseException:
            self.close()
            raise
        self.opened = self._transaction

    def write(self, element: Any, context: SinkContext) -> None:
        self._function.invoke(self._transaction, element, context)

    def flush(self) -> None:
        self._function.flush()

    def prepare_commit(self) -> Sequence[Any]:
        self._function.pre_commit(self._transaction)
        return (self._transaction,)

    def abort(self) -> None:
        self._function.abort(self._transaction)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._function.close()


class _TransactionCommitter(Committer):
    def __init__(self, function: TwoPhaseCommitSinkFunction, runtime: RuntimeContext) -> None:
        self._function = function
        function.open(runtime)

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        _for_each(requests, self._commit)

    def _commit(self, request: CommitRequest) -> None:
        if request.recovered:
            self._function.recover_and_commit(request.committable)
        else:
            self._function.commit(request.committable)

    def abort_opened(self, committables: Sequence[Any]) -> None:
        _for_each(committables, self._function.recover_and_abort)

    def close(self) -> None:
        self._function.close()


def _for_each(items: Iterable[T], call: Callable[[T], None]) -> None:
    """Call with every item, whatever another one raises; the first error comes at the end."""
    failure: Exception | None = None
    for item in items:
        try:
            call(item)
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure
