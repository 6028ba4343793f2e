"""Asynchronous keyed state: the API for authors of jobs and of backends.

Authors of jobs subclass `KeyedProcessFunction` and similar classes, declare states in ``open`` and
use them for each record: with ``await``, with callbacks or synchronously. Authors of backends
implement `forebay_state_api.contract.backend` and subclass the conformance kit,
`forebay_testing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from forebay_state_api.lazy_names import lazy_names

if TYPE_CHECKING:
    from forebay_state_api.calls.declared import Calls
    from forebay_state_api.calls.errors import ClientBrokenError, RetryLaterError
    from forebay_state_api.calls.policies import Rate, Retry
    from forebay_state_api.codecs import Alias, Codec, MigratedFrom
    from forebay_state_api.errors import (
        ConfigurationError,
        CorruptStateError,
        FencedError,
        ForebayError,
        FunctionError,
        OutputSchemaError,
        PluginError,
        StateAccessError,
        StateMigrationError,
        StorageError,
        UnknownPluginError,
    )
    from forebay_state_api.job.aggregation import AggregateFunction, ReduceFunction
    from forebay_state_api.job.clients import Clients
    from forebay_state_api.job.context import RuntimeContext
    from forebay_state_api.job.descriptors import (
        AggregatingStateDescriptor,
        ListStateDescriptor,
        MapStateDescriptor,
        ReducingStateDescriptor,
        SortedMapStateDescriptor,
        ValueStateDescriptor,
    )
    from forebay_state_api.job.functions import (
        FlatMapFunction,
        KeyedBroadcastProcessFunction,
        KeyedCoProcessFunction,
        KeyedProcessFunction,
        MapFunction,
    )
    from forebay_state_api.job.futures import (
        StateFuture,
        combine_all,
        completed_future,
        completed_void_future,
    )
    from forebay_state_api.job.iterators import StateIterator, to_iterable
    from forebay_state_api.job.operator_state import (
        CheckpointedFunction,
        CheckpointListener,
        InitializationContext,
        ListCheckpointed,
        OperatorStateStore,
        SnapshotContext,
    )
    from forebay_state_api.job.states import (
        AggregatingState,
        ListState,
        MapState,
        ReducingState,
        SortedMapState,
        State,
        ValueState,
    )
    from forebay_state_api.job.timers import TimeDomain, Timers
    from forebay_state_api.job.ttl import (
        CleanupFullSnapshot,
        CleanupInBackground,
        CleanupInCompaction,
        CleanupIncrementally,
        CleanupOnRead,
        StateTtlConfig,
        StateVisibility,
        UpdateType,
    )
    from forebay_state_api.keys import (
        KeyGroupRange,
        default_max_parallelism,
        key_group_of,
        key_group_range_of,
    )

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "Alias",
    "Calls",
    "CheckpointListener",
    "CheckpointedFunction",
    "CleanupFullSnapshot",
    "CleanupInBackground",
    "CleanupInCompaction",
    "CleanupIncrementally",
    "CleanupOnRead",
    "ClientBrokenError",
    "Clients",
    "Codec",
    "ConfigurationError",
    "CorruptStateError",
    "FencedError",
    "FlatMapFunction",
    "ForebayError",
    "FunctionError",
    "InitializationContext",
    "KeyGroupRange",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "ListCheckpointed",
    "ListState",
    "ListStateDescriptor",
    "MapFunction",
    "MapState",
    "MapStateDescriptor",
    "MigratedFrom",
    "OperatorStateStore",
    "OutputSchemaError",
    "PluginError",
    "Rate",
    "ReduceFunction",
    "ReducingState",
    "ReducingStateDescriptor",
    "Retry",
    "RetryLaterError",
    "RuntimeContext",
    "SnapshotContext",
    "SortedMapState",
    "SortedMapStateDescriptor",
    "State",
    "StateAccessError",
    "StateFuture",
    "StateIterator",
    "StateMigrationError",
    "StateTtlConfig",
    "StateVisibility",
    "StorageError",
    "TimeDomain",
    "Timers",
    "UnknownPluginError",
    "UpdateType",
    "ValueState",
    "ValueStateDescriptor",
    "combine_all",
    "completed_future",
    "completed_void_future",
    "default_max_parallelism",
    "key_group_of",
    "key_group_range_of",
    "to_iterable",
]

_HOMES: Final = {
    "forebay_state_api.calls.declared": ("Calls",),
    "forebay_state_api.calls.policies": (
        "Rate",
        "Retry",
    ),
    "forebay_state_api.calls.errors": (
        "ClientBrokenError",
        "RetryLaterError",
    ),
    "forebay_state_api.codecs": (
        "Alias",
        "Codec",
        "MigratedFrom",
    ),
    "forebay_state_api.errors": (
        "ConfigurationError",
        "CorruptStateError",
        "FencedError",
        "ForebayError",
        "FunctionError",
        "OutputSchemaError",
        "PluginError",
        "StateAccessError",
        "StateMigrationError",
        "StorageError",
        "UnknownPluginError",
    ),
    "forebay_state_api.job.aggregation": (
        "AggregateFunction",
        "ReduceFunction",
    ),
    "forebay_state_api.job.clients": ("Clients",),
    "forebay_state_api.job.context": ("RuntimeContext",),
    "forebay_state_api.job.descriptors": (
        "AggregatingStateDescriptor",
        "ListStateDescriptor",
        "MapStateDescriptor",
        "ReducingStateDescriptor",
        "SortedMapStateDescriptor",
        "ValueStateDescriptor",
    ),
    "forebay_state_api.job.functions": (
        "FlatMapFunction",
        "KeyedBroadcastProcessFunction",
        "KeyedCoProcessFunction",
        "KeyedProcessFunction",
        "MapFunction",
    ),
    "forebay_state_api.job.futures": (
        "StateFuture",
        "combine_all",
        "completed_future",
        "completed_void_future",
    ),
    "forebay_state_api.job.iterators": (
        "StateIterator",
        "to_iterable",
    ),
    "forebay_state_api.job.operator_state": (
        "CheckpointedFunction",
        "CheckpointListener",
        "InitializationContext",
        "ListCheckpointed",
        "OperatorStateStore",
        "SnapshotContext",
    ),
    "forebay_state_api.job.states": (
        "AggregatingState",
        "ListState",
        "MapState",
        "ReducingState",
        "SortedMapState",
        "State",
        "ValueState",
    ),
    "forebay_state_api.job.timers": (
        "TimeDomain",
        "Timers",
    ),
    "forebay_state_api.job.ttl": (
        "CleanupFullSnapshot",
        "CleanupInBackground",
        "CleanupInCompaction",
        "CleanupIncrementally",
        "CleanupOnRead",
        "StateTtlConfig",
        "StateVisibility",
        "UpdateType",
    ),
    "forebay_state_api.keys": (
        "KeyGroupRange",
        "default_max_parallelism",
        "key_group_of",
        "key_group_range_of",
    ),
}
"""Module → its public names, imported on first use: a command of `forebay` needs few of them."""


__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    """Return the public names, without the submodules that happen to be imported."""
    return __all__
