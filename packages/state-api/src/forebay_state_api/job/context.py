"""`RuntimeContext`: the argument of ``open``, and the ``ctx`` of each record.

One object serves a whole subtask: the engine sets the current key before each piece of user code
that belongs to a record, so the context is valid in every callback and after every ``await``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypeVar

from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.clients import NoClients
from forebay_state_api.job.current_key import NO_KEY
from forebay_state_api.job.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    SortedMapStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.job.futures import StateFuture, completed_void_future

if TYPE_CHECKING:
    from forebay_state_api.job.states import (
        AggregatingState,
        ListState,
        MapState,
        ReducingState,
        SortedMapState,
        ValueState,
    )
    from forebay_state_api.job.timers import Timers

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
IN = TypeVar("IN")
ACC = TypeVar("ACC")
OUT = TypeVar("OUT")


class BroadcastAccess(Protocol):
    """The accesses that only a function with a broadcast input has."""

    def state(self, descriptor: MapStateDescriptor[Any, Any]) -> MapState[Any, Any]:
        """Return a broadcast state."""

    def visit(self, descriptor: StateDescriptor, fn: Callable[[Any, Any], Any]) -> None:
        """Call ``fn(key, state)`` for every key that has the state."""


class RuntimeContext:
    """A function's access to its states, timers, current key and place of execution."""

    __slots__ = (
        "_attempt_number",
        "_batch_id",
        "_broadcast",
        "_call",
        "_declare",
        "_group",
        "_idempotency_key",
        "_kept_call",
        "_key",
        "_max_parallelism",
        "_namespace",
        "_operator_uid",
        "_parallelism",
        "_set_namespace",
        "_subtask_index",
        "clients",
        "collect",
        "timers",
    )

    clients: Any
    """The open clients of the function's `Clients`, as attributes."""
    collect: Callable[[Any], None]
    """``ctx.collect(row)`` emits a row, from anywhere, including callbacks."""
    timers: Timers
    """The timers of the current key, for a function that has ``on_timer``."""

    def __init__(
        self,
        *,
        operator_uid: str,
        subtask_index: int,
        parallelism: int,
        max_parallelism: int,
        attempt_number: int,
        batch_id: int,
    ) -> None:
        self._operator_uid = operator_uid
        self._subtask_index = subtask_index
        self._parallelism = parallelism
        self._max_parallelism = max_parallelism
        self._attempt_number = attempt_number
        self._batch_id = batch_id
        self.clients = NoClients(operator_uid)
        self._key: Any = NO_KEY
        self._group = -1
        self._namespace: Any = None
        self._broadcast: BroadcastAccess | None = None
        self._declare: Callable[[StateDescriptor], Any]
        self._idempotency_key: Callable[[], str]
        self._call: Callable[..., Coroutine[Any, Any, Any]]
        self._kept_call: Callable[..., Coroutine[Any, Any, Any]]
        self._set_namespace: Callable[[Any], None]

    @property
    def current_key(self) -> Any:
        """The key of the current record; a tuple if there are several key columns."""
        if self._key is NO_KEY:
            hash(NO_KEY)
        return self._key

    @property
    def current_namespace(self) -> Any:
        """The namespace of later accesses; ``None`` unless one was set for this record."""
        return self._namespace

    @property
    def idempotency_key(self) -> str:
        """A key for the current record or timer, to be sent with calls that change something.

        It is the same in every attempt and replay of the micro-batch, whatever the order of the
        rows and the parallelism, and no other record has it. It names query, batch, operator,
        input, key, namespace and the values of the row. Rows that are equal in all of that are
        distinguished by a number, in the order in which they ask. It is made when it is asked for.
        Raises `StateAccessError` where no record runs, and for a row with values of other than
        plain kinds.
        """
        return self._idempotency_key()

    def call(
        self, fn: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]:
        """Call an external service: make the tries of ``fn`` that the function's `Calls` allow.

        Await it, or give it to asyncio, as ``gather(ctx.call(f), ctx.call(g))``.

        :param fn: an asynchronous function, of anything but state: it may be called several times.
            It takes clients from ``ctx.clients`` itself, so that each try has open ones.

        Returns the answer, or raises the error of the last try, or ``TimeoutError``. A try waits
        until fewer than ``calls_in_flight`` calls of the subtask are made, and for its turn of the
        rate; such waits do not count in its time limits.
        """
        return self._call(fn, args, kwargs)

    def kept_call(
        self, name: str, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]:
        """Call as `call` does, and keep the answer while the micro-batch may be repeated.

        A repeated micro-batch gets it back from storage instead of making the call: same name, key,
        namespace and arguments. Equal calls of a key are numbered in the order in which they are
        written. A call that is not found is made.

        :param name: a name of your own. Another one finds nothing: change it with the prompt.
        :param args: all that the call asks, as plain values; ``ctx`` does not count. A closure over
            values of the record is refused.

        The answer is a plain value, too, and the function gets it as a repetition would. One that
        ``on_result`` refuses is not kept.
        """
        return self._kept_call(name, fn, args, kwargs)

    def set_current_namespace(self, namespace: Any) -> None:
        """Set the namespace of all later accesses of this record.

        ``namespace`` is a hashable value of a plain kind; values that are equal in Python (``1``
        and ``True``) are one namespace. The next record starts in the default namespace, ``None``,
        again. Raises `TypeError` for any other value.
        """
        self._set_namespace(namespace)

    @property
    def operator_uid(self) -> str:
        """The operator's ``uid``, as the job set it."""
        return self._operator_uid

    @property
    def subtask_index(self) -> int:
        """The number of this subtask among the parallel subtasks, from 0."""
        return self._subtask_index

    @property
    def parallelism(self) -> int:
        """Number of parallel subtasks."""
        return self._parallelism

    @property
    def max_parallelism(self) -> int:
        """Number of key groups."""
        return self._max_parallelism

    @property
    def attempt_number(self) -> int:
        """The number of earlier attempts of this task within the run of the query."""
        return self._attempt_number

    @property
    def batch_id(self) -> int:
        """The id of the current micro-batch."""
        return self._batch_id

    def get_state(self, descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """Declare and return the value state of ``descriptor``; call it in ``open``."""
        state: ValueState[T] = self._declared(descriptor, ValueStateDescriptor)
        return state

    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Declare and return the list state of ``descriptor``; call it in ``open``."""
        state: ListState[T] = self._declared(descriptor, ListStateDescriptor)
        return state

    def get_map_state(self, descriptor: MapStateDescriptor[K, V]) -> MapState[K, V]:
        """Declare and return the map state of ``descriptor``; call it in ``open``."""
        state: MapState[K, V] = self._declared(descriptor, MapStateDescriptor)
        return state

    def get_sorted_map_state(
        self, descriptor: SortedMapStateDescriptor[K, V]
    ) -> SortedMapState[K, V]:
        """Declare and return the sorted map state of ``descriptor``; call it in ``open``."""
        state: SortedMapState[K, V] = self._declared(descriptor, SortedMapStateDescriptor)
        return state

    def get_reducing_state(self, descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]:
        """Declare and return the reducing state of ``descriptor``; call it in ``open``."""
        state: ReducingState[T] = self._declared(descriptor, ReducingStateDescriptor)
        return state

    def get_aggregating_state(
        self, descriptor: AggregatingStateDescriptor[IN, ACC, OUT]
    ) -> AggregatingState[IN, OUT]:
        """Declare and return the aggregating state of ``descriptor``; call it in ``open``."""
        state: AggregatingState[IN, OUT] = self._declared(descriptor, AggregatingStateDescriptor)
        return state

    def get_broadcast_state(self, descriptor: MapStateDescriptor[K, V]) -> MapState[K, V]:
        """Return the broadcast state of ``descriptor``, for a `KeyedBroadcastProcessFunction`.

        Declare it by a call in ``open``; later calls return the same object. It is a map in memory,
        of which every subtask has a whole copy, and its asynchronous methods are done when they
        return. Only ``process_broadcast_element`` may write it; elsewhere a write raises
        `StateAccessError`. After a change of parallelism each subtask has the whole copy again.
        """
        state: MapState[K, V] = self._broadcasts("get_broadcast_state").state(descriptor)
        return state

    def apply_to_keyed_state(
        self, descriptor: StateDescriptor, fn: Callable[[Any, Any], Any]
    ) -> None:
        """Call ``fn(key, state)`` for every key of this subtask that has the state.

        For ``process_broadcast_element``. All calls are done when this returns.

        :param descriptor: the descriptor of a state declared in ``open``.
        :param fn: a function of any form that a record method may have; rows that it returns or
            yields are emitted. The key is current in it, so it may use the key's other states and
            timers, too. Asynchronous functions of several keys overlap.

        Each key with content in the default namespace is visited once, in any order; content that
        has expired does not count. Keys are read page by page, and what ``fn`` writes may leave
        memory between pages. Broadcast state is read-only in ``fn``. Raises `StateAccessError`
        outside ``process_broadcast_element``, and `ConfigurationError` for a state that is not
        declared and for a backend that cannot list its keys.
        """
        self._broadcasts("apply_to_keyed_state").visit(descriptor, fn)

    def async_apply_to_keyed_state(
        self, descriptor: StateDescriptor, fn: Callable[[Any, Any], Any]
    ) -> StateFuture[None]:
        """Do what `apply_to_keyed_state` does, as a future that is done when this returns."""
        self.apply_to_keyed_state(descriptor, fn)
        return completed_void_future()

    def _broadcasts(self, method: str) -> BroadcastAccess:
        if self._broadcast is None:
            raise ConfigurationError(
                f"operator {self._operator_uid!r}: ctx.{method} is for a "
                "KeyedBroadcastProcessFunction. Other functions have broadcast state through "
                "operator_state_store.get_broadcast_state, in initialize_state"
            )
        return self._broadcast

    def _declared(self, descriptor: StateDescriptor, wanted: type[StateDescriptor]) -> Any:
        if not isinstance(descriptor, wanted):
            message = f"expected a {wanted.__name__}, got {descriptor!r}"
            for kind, getter in _GETTERS.items():
                if isinstance(descriptor, kind):
                    message += f", which is for context.{getter}"
            raise TypeError(message)
        return self._declare(descriptor)


_GETTERS: Final = {
    ValueStateDescriptor: "get_state",
    ListStateDescriptor: "get_list_state",
    MapStateDescriptor: "get_map_state",
    SortedMapStateDescriptor: "get_sorted_map_state",
    ReducingStateDescriptor: "get_reducing_state",
    AggregatingStateDescriptor: "get_aggregating_state",
}
"""Class of descriptor → the method that takes it."""
