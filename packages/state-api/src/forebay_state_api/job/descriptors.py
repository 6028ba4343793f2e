"""State descriptors: the name and the types of a state, and the functions that make its values.

``type_info`` and the other type arguments accept a Python type or annotation, a Spark DDL string or
``DataType``, or a `Codec`; ``None`` means self-describing values of the plain kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar, cast, overload

from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.aggregation import (
    AggregateFunction,
    ReduceFunction,
    check_defined,
    check_no_life,
    check_plain,
    is_plain,
)
from forebay_state_api.job.ttl import StateTtlConfig

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
IN = TypeVar("IN")
ACC = TypeVar("ACC")
OUT = TypeVar("OUT")


class StateDescriptor:
    """Base of all descriptors: a name, unique in the operator, and an optional time to live.

    A state that is stored without a TTL cannot be declared with one, nor the other way round,
    unless the descriptor has ``switch_ttl=True``. Then stored data count as written in the
    micro-batch of the restart, or lose their times.

    Invalid arguments raise `ConfigurationError`.
    """

    kind: ClassVar[str]
    """The kind of state, stored in descriptions."""
    key_type: Any = None
    """The type of user keys, for kinds that are stored as maps."""

    def __init__(
        self, name: str, value_type: Any, ttl: StateTtlConfig | None, switch_ttl: object
    ) -> None:
        if not (name and isinstance(name, str)):
            raise ConfigurationError(f"a state's name is a string that is not empty, not {name!r}")
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(f"a state's name is not valid text: {error}") from error
        if not isinstance(ttl, StateTtlConfig | None):
            raise ConfigurationError(f"state {name!r}: ttl takes a StateTtlConfig, not {ttl!r}")
        if not isinstance(switch_ttl, bool):
            raise ConfigurationError(
                f"state {name!r}: switch_ttl takes True or False, not {switch_ttl!r}"
            )
        self.name = name
        self.value_type = value_type
        self.ttl = ttl
        self.switch_ttl = switch_ttl

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def aspects(self) -> dict[str, object]:
        """Return name → property, in which descriptors of one kind and name must agree."""
        return {"type": self.value_type, "ttl": self.ttl}


class ValueStateDescriptor(StateDescriptor, Generic[T]):
    """Describes a `ValueState`.

    :param name: the state's name, unique in the operator.
    :param type_info: the type of the value; default: any plain value.
    :param default: the value that an unset or expired state reads as; default: ``None``.
    :param ttl: the time to live; default: none.
    :param switch_ttl: whether stored state may have been declared with a TTL if this one has none,
        or without one if this one has one; default: no.

    ``T`` is the type of reads: the declared type or ``None``, or the declared type alone if there
    is a default.
    """

    kind = "value"

    @overload
    def __init__(
        self: ValueStateDescriptor[V],
        name: str,
        type_info: type[V],
        *,
        default: V,
        ttl: StateTtlConfig | None = None,
        switch_ttl: bool = False,
    ) -> None: ...
    @overload
    def __init__(
        self: ValueStateDescriptor[V | None],
        name: str,
        type_info: type[V],
        *,
        default: None = None,
        ttl: StateTtlConfig | None = None,
        switch_ttl: bool = False,
    ) -> None: ...
    @overload
    def __init__(
        self: ValueStateDescriptor[Any],
        name: str,
        type_info: Any = None,
        *,
        default: Any = None,
        ttl: StateTtlConfig | None = None,
        switch_ttl: bool = False,
    ) -> None: ...
    def __init__(
        self,
        name: str,
        type_info: Any = None,
        *,
        default: Any = None,
        ttl: StateTtlConfig | None = None,
        switch_ttl: bool = False,
    ) -> None:
        super().__init__(name, type_info, ttl, switch_ttl)
        self.default = default

    def aspects(self) -> dict[str, object]:
        return super().aspects() | {"default": self.default}


class ListStateDescriptor(StateDescriptor, Generic[T]):
    """Describes a `ListState`.

    :param name: the state's name, unique in the operator.
    :param element_type: the type of the elements; default: any plain value.
    :param ttl: the time to live of each element; default: none.
    :param switch_ttl: whether stored state may have been declared with a TTL if this one has none,
        or without one if this one has one; default: no.
    """

    kind = "list"

    @overload
    def __init__(
        self,
        name: str,
        element_type: type[T],
        *,
        ttl: StateTtlConfig | None = None,
        switch_ttl: bool = False,
    ) -> None: ...
    @overload
    def __init__(
        self: ListStateDescriptor[Any],
        name: str,
        element_type: Any = None,
        *,
        ttl: StateTtlConfig | None = None,
        switch_ttl: bool = False,
    ) -> None: ...
    def __init__(
        self,
        name: str,
        element_type: Any = None,
        *,
        ttl: StateTtlConfig | None = None,
        switch_ttl: bool = False,
    ) -> None:
        super().__init__(name, element_type, ttl, switch_ttl)


class MapStateDescriptor(StateDescriptor, Generic[K, V]):
    """Describes a `MapState`.

    :param name: the state's name, unique in the operator.
    :param key_type: the type of the user keys; default: any plain value.
    :param value_type: the type of the values; default: any plain value.
    :param ttl: the time to live of each entry; default: none.
    :param switch_ttl: whether stored state may have been declared with a TTL if this one has none,
        or without one if this one has one; default: no.
    """

    kind = "map"

    @overload
    def __init__(
        self,
        name: str,
        key_type: type[K],
        value_type: type[V],
        *,
        ttl: StateTtlConfig | None = None,
        switch_ttl: bool = False,
    ) -> None: ...
    @overload
    def __init__(
        self: MapStateDescriptor[K, Any],
        name: str,
        key_type: type[K],
        value_type: Any = None,
        *,
        ttl: StateTtlConfig | None = None,
        switch_ttl: bool = False,
    ) -> None: ...
    @overload
    def __init__(
        self: MapStateDescriptor[Any, Any],
        name: str,
        key_type: Any = None,
        value_type: Any = None,
        *,
        ttl: StateTtlConfig | None = None,
        switch_ttl: bool = False,
    ) -> None: ...
    def __init__(
        self,
        name: str,
        key_type: Any = None,
        value_type: Any = None,
        *,
        ttl: StateTtlConfig | None = None,
        switch_ttl: bool = False,
    ) -> None:
        super().__init__(name, value_type, ttl, switch_ttl)
        self.key_type = key_type

    def aspects(self) -> dict[str, object]:
        return {"key type": self.key_type} | super().aspects()


class SortedMapStateDescriptor(StateDescriptor, Generic[K, V]):
    """Describes a `SortedMapState`.

    :param name: the state's name, unique in the operator.
    :param key_type: the type of the user keys: int, float, Decimal, str, bytes, date, datetime,
        time, timedelta or UUID, or a tuple of them. It cannot change while state is stored.
    :param value_type: the type of the values; default: any plain value.
    :param ttl: the time to live of each entry; default: none.
    :param switch_ttl: whether stored state may have been declared with a TTL if this one has none,
        or without one if this one has one; default: no.
    """

    kind = "sorted_map"

    @overload
    def __init__(
        self,
        name: str,
        key_type: type[K],
        value_type: type[V],
        *,
        ttl: StateTtlConfig | None = None,
        switch_ttl: bool = False,
    ) -> None: ...
    @overload
    def __init__(
        self: SortedMapStateDescriptor[K, Any],
        name: str,
        key_type: type[K],
        value_type: Any = None,
        *,
        ttl: StateTtlConfig | None = None,
        switch_ttl: bool = False,
    ) -> None: ...
    @overload
    def __init__(
        self: SortedMapStateDescriptor[Any, Any],
        name: str,
        key_type: Any,
        value_type: Any = None,
        *,
        ttl: StateTtlConfig | None = None,
        switch_ttl: bool = False,
    ) -> None: ...
    def __init__(
        self,
        name: str,
        key_type: Any,
        value_type: Any = None,
        *,
        ttl: StateTtlConfig | None = None,
        switch_ttl: bool = False,
    ) -> None:
        super().__init__(name, value_type, ttl, switch_ttl)
        self.key_type = key_type

    def aspects(self) -> dict[str, object]:
        return {"key type": self.key_type} | super().aspects()


class ReducingStateDescriptor(StateDescriptor, Generic[T]):
    """Describes a `ReducingState`.

    :param name: the state's name, unique in the operator.
    :param reduce_function: a `ReduceFunction`, or a callable of two values.
    :param type_info: the type of the value; default: any plain value.
    :param ttl: the time to live; default: none.
    :param switch_ttl: whether stored state may have been declared with a TTL if this one has none,
        or without one if this one has one; default: no.
    """

    kind = "reducing"

    def __init__(
        self,
        name: str,
        reduce_function: ReduceFunction[T] | Callable[[T, T], T],
        type_info: Any = None,
        *,
        ttl: StateTtlConfig | None = None,
        switch_ttl: bool = False,
    ) -> None:
        super().__init__(name, type_info, ttl, switch_ttl)
        reduce = getattr(reduce_function, "reduce", reduce_function)
        if not callable(reduce) or not is_plain(reduce):
            raise ConfigurationError(
                f"state {name!r}: reduce_function takes a ReduceFunction or a plain callable of "
                f"two values, not {reduce_function!r}"
            )
        self.reduce = cast("Callable[[T, T], T]", reduce)
        if isinstance(reduce_function, ReduceFunction):
            check_defined(reduce_function)
            check_no_life(reduce_function, f"state {name!r}")
        self.reduce_function = reduce_function

    def aspects(self) -> dict[str, object]:
        return super().aspects() | {"reduce_function": self.reduce_function}


class AggregatingStateDescriptor(StateDescriptor, Generic[IN, ACC, OUT]):
    """Describes an `AggregatingState`.

    :param name: the state's name, unique in the operator.
    :param aggregate_function: an instance of `AggregateFunction`.
    :param accumulator_type: the type of the stored accumulator; default: any plain value.
    :param ttl: the time to live; default: none.
    :param switch_ttl: whether stored state may have been declared with a TTL if this one has none,
        or without one if this one has one; default: no.
    """

    kind = "aggregating"

    def __init__(
        self,
        name: str,
        aggregate_function: AggregateFunction[IN, ACC, OUT],
        accumulator_type: Any = None,
        *,
        ttl: StateTtlConfig | None = None,
        switch_ttl: bool = False,
    ) -> None:
        super().__init__(name, accumulator_type, ttl, switch_ttl)
        if not isinstance(aggregate_function, AggregateFunction):
            raise ConfigurationError(
                f"state {name!r}: aggregate_function takes an instance of AggregateFunction, "
                f"not {aggregate_function!r}"
            )
        check_defined(aggregate_function)
        check_no_life(aggregate_function, f"state {name!r}")
        check_plain(aggregate_function, f"state {name!r}")
        self.aggregate_function = aggregate_function

    def aspects(self) -> dict[str, object]:
        return super().aspects() | {"aggregate_function": self.aggregate_function}
