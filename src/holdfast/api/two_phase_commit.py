"""Sink functions with transactions.

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

A transaction is any object that identifies it. Checkpoints contain it, encoded by its type: the
return annotation of `begin_transaction`, or `transaction_type`. `commit` runs on another copy of
the function than `invoke`, possibly in another process, possibly twice. It must find the
transaction by its id, do nothing if it is already committed, and succeed eventually.
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
    """Writes every epoch in a transaction that is committed with its checkpoint."""

    transaction_type: Any = None
    """Type of the transactions, as for a state; by default the annotation of `begin_transaction`.

    It is a builtin, a container, a dataclass, `NamedTuple`, `TypedDict` or `msgspec.Struct`, a
    Spark or Arrow type, or an object with `serialize` and `deserialize`. With `Any` transactions
    are pickled: reading a checkpoint then runs code that anyone with write access to checkpoint
    storage can choose.
    """

    @abstractmethod
    def begin_transaction(self) -> TXN:
        """Begin a transaction; called after `open`, before the first element of an epoch."""

    @abstractmethod
    def invoke(self, transaction: TXN, value: IN, context: SinkContext) -> None:
        """Write one element."""

    def flush(self) -> None:
        """Write buffered elements; called before `pre_commit`."""

    @abstractmethod
    def pre_commit(self, transaction: TXN) -> None:
        """Make the transaction durable, so that `commit` can succeed later."""

    @abstractmethod
    def commit(self, transaction: TXN) -> None:
        """Commit the transaction; must be idempotent."""

    @abstractmethod
    def abort(self, transaction: TXN) -> None:
        """Abort the transaction, pre-committed or not; must be idempotent."""

    def recover_and_commit(self, transaction: TXN) -> None:
        """Commit the transaction after a recovery; it may be committed already."""
        self.commit(transaction)

    def recover_and_abort(self, transaction: TXN) -> None:
        """Abort a transaction that a dead process has left open."""
        self.abort(transaction)


class TwoPhaseCommitSink(Sink):
    """Runs a `TwoPhaseCommitSinkFunction`."""

    notes_opened = True

    def __init__(self, function: TwoPhaseCommitSinkFunction) -> None:
        """The sink of `function`.

        Raises:
            TypeDeclarationError: The type of its transactions is unknown.
        """
        self.function = function
        self.committable_type = _transaction_type(function)

    @property
    def name(self) -> str:
        """Name of the function's class."""
        return type(self.function).__name__

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """A writer with a new transaction."""
        return _TransactionWriter(self.function, context)

    def create_committer(self, runtime: RuntimeContext) -> Committer:
        """A committer with a separate copy of the function."""
        return _TransactionCommitter(self.function, runtime)


def _transaction_type(function: TwoPhaseCommitSinkFunction) -> Any:
    if function.transaction_type is not None:
        return function.transaction_type
    annotation = return_annotation(function.begin_transaction)
    if annotation in (None, Any, object):
        name = type(function).__name__
        raise TypeDeclarationError(
            f"{name} does not declare the type of its transactions, and checkpoints contain them; "
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
    """Call with every item, even if a call raises; raise the first error at the end."""
    failure: Exception | None = None
    for item in items:
        try:
            call(item)
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure
