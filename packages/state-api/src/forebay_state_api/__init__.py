"""Asynchronous keyed state: the API for authors of jobs and of backends.

Authors of jobs subclass `KeyedProcessFunction` and similar classes, declare states in ``open`` and
use them for each record: with ``await``, with callbacks or synchronously. Authors of backends
implement `forebay_state_api.contract.backend` and subclass the conformance kit,
`forebay_testing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_state_api.lazy_names import import_on_first_use

if TYPE_CHECKING or not import_on_first_use(__name__):
    from forebay_state_api.calls.declared import Calls as Calls
    from forebay_state_api.calls.errors import (
        ClientBrokenError as ClientBrokenError,
        RetryLaterError as RetryLaterError,
    )
    from forebay_state_api.calls.policies import Rate as Rate, Retry as Retry
    from forebay_state_api.codecs import (
        Alias as Alias,
        Codec as Codec,
        MigratedFrom as MigratedFrom,
    )
    from forebay_state_api.errors import (
        ConfigurationError as ConfigurationError,
        CorruptStateError as CorruptStateError,
        FencedError as FencedError,
        ForebayError as ForebayError,
        FunctionError as FunctionError,
        OutputSchemaError as OutputSchemaError,
        PluginError as PluginError,
        StateAccessError as StateAccessError,
        StateMigrationError as StateMigrationError,
        StorageError as StorageError,
        UnknownPluginError as UnknownPluginError,
    )
    from forebay_state_api.job.aggregation import (
        AggregateFunction as AggregateFunction,
        ReduceFunction as ReduceFunction,
    )
    from forebay_state_api.job.clients import Clients as Clients
    from forebay_state_api.job.context import RuntimeContext as RuntimeContext
    from forebay_state_api.job.descriptors import (
        AggregatingStateDescriptor as AggregatingStateDescriptor,
        ListStateDescriptor as ListStateDescriptor,
        MapStateDescriptor as MapStateDescriptor,
        ReducingStateDescriptor as ReducingStateDescriptor,
        SortedMapStateDescriptor as SortedMapStateDescriptor,
        ValueStateDescriptor as ValueStateDescriptor,
    )
    from forebay_state_api.job.functions import (
        FlatMapFunction as FlatMapFunction,
        KeyedBatchFunction as KeyedBatchFunction,
        KeyedBroadcastProcessFunction as KeyedBroadcastProcessFunction,
        KeyedCoProcessFunction as KeyedCoProcessFunction,
        KeyedProcessFunction as KeyedProcessFunction,
        MapFunction as MapFunction,
    )
    from forebay_state_api.job.futures import (
        StateFuture as StateFuture,
        combine_all as combine_all,
        completed_future as completed_future,
        completed_void_future as completed_void_future,
    )
    from forebay_state_api.job.iterators import (
        StateIterator as StateIterator,
        to_iterable as to_iterable,
    )
    from forebay_state_api.job.operator_state import (
        CheckpointListener as CheckpointListener,
        CheckpointedFunction as CheckpointedFunction,
        InitializationContext as InitializationContext,
        ListCheckpointed as ListCheckpointed,
        OperatorStateStore as OperatorStateStore,
        SnapshotContext as SnapshotContext,
    )
    from forebay_state_api.job.states import (
        AggregatingState as AggregatingState,
        ListState as ListState,
        MapState as MapState,
        ReducingState as ReducingState,
        SortedMapState as SortedMapState,
        State as State,
        ValueState as ValueState,
    )
    from forebay_state_api.job.timers import TimeDomain as TimeDomain, Timers as Timers
    from forebay_state_api.job.ttl import (
        CleanupFullSnapshot as CleanupFullSnapshot,
        CleanupInBackground as CleanupInBackground,
        CleanupInCompaction as CleanupInCompaction,
        CleanupIncrementally as CleanupIncrementally,
        CleanupOnRead as CleanupOnRead,
        StateTtlConfig as StateTtlConfig,
        StateVisibility as StateVisibility,
        UpdateType as UpdateType,
    )
    from forebay_state_api.keys import (
        KeyGroupRange as KeyGroupRange,
        default_max_parallelism as default_max_parallelism,
        key_group_of as key_group_of,
        key_group_range_of as key_group_range_of,
    )
