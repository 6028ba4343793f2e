"""Operator state: refusals, log messages, broadcast maps and files."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from forebay_engine.versions import Manifest, open_version
from forebay_engine.versions.format.blobs import INLINE_BYTES
from forebay_state_api import (
    CheckpointedFunction,
    ConfigurationError,
    CorruptStateError,
    FunctionError,
    KeyedProcessFunction,
    ListCheckpointed,
    ListStateDescriptor,
    MapStateDescriptor,
    StateAccessError,
    StateMigrationError,
    StateTtlConfig,
)
from forebay_testing import KeyedJob
from forebay_testing.backends.subject import memory_storage
from forebay_testing.reference import ReferenceBackend

MAP = MapStateDescriptor("map", str, int)
LIST = ListStateDescriptor("list", int)


class Plain(KeyedProcessFunction):
    def process_element(self, row, ctx):
        """Do nothing."""


class Acting(Plain, CheckpointedFunction):
    """Does what the test says in ``initialize_state``, ``process_element`` and at the end."""

    def __init__(self, initialize, process=None, snapshot=None):
        self.initialize, self.process, self.snapshot = initialize, process, snapshot

    def initialize_state(self, context):
        self.context = context
        self.state = self.initialize(context.operator_state_store)

    def process_element(self, row, ctx):
        return None if self.process is None else self.process(self, ctx)

    def snapshot_state(self, context):
        if self.snapshot is not None:
            self.snapshot(self, context)


@pytest.fixture
def job():
    return KeyedJob(ReferenceBackend, memory_storage())


def listed(store):
    return store.get_list_state(LIST)


def mapped(store):
    return store.get_broadcast_state(MAP)


class TestRefused:
    def test_a_time_to_live(self, job):
        ttl = StateTtlConfig(timedelta(seconds=1))
        descriptor = ListStateDescriptor("list", int, ttl=ttl)
        with pytest.raises(ConfigurationError, match="no TTL"):
            job.run(Acting(lambda store: store.get_list_state(descriptor)), [])

    def test_the_wrong_descriptor(self, job):
        with pytest.raises(FunctionError, match="takes a ListStateDescriptor"):
            job.run(Acting(lambda store: store.get_list_state(MAP)), [])

    def test_a_declaration_after_the_first_record(self, job):
        late = Acting(lambda store: store, lambda self, _: listed(self.state))
        with pytest.raises(ConfigurationError, match="before the first record"):
            job.run(late, [("key",)])

    def test_two_descriptors_that_disagree(self, job):
        def both(store):
            listed(store)
            return store.get_list_state(ListStateDescriptor("list", str))

        with pytest.raises(ConfigurationError, match=r"disagree .* in type \(int and str\)"):
            job.run(Acting(both), [])

    def test_both_kinds_of_function_at_once(self, job):
        class Both(Acting, ListCheckpointed):
            def restore_state(self, state):
                """Never called."""

        with pytest.raises(ConfigurationError, match="choose one"):
            job.run(Both(listed), [])

    def test_asynchronous_methods(self, job):
        class Asynchronous(Acting):
            async def initialize_state(self, context):
                """Never awaited."""

        with pytest.raises(FunctionError, match="plain method: it neither awaits"):
            job.run(Asynchronous(listed), [])

    def test_rows_given_out_in_snapshot_state(self, job):
        def give_out(self, _):
            self.context.keyed_state_store.collect(("row",))

        with pytest.raises(StateAccessError, match="after the last record"):
            job.run(Acting(listed, snapshot=give_out), [])

    def test_namespaces(self, job):
        merging = Acting(listed, lambda self, _: self.state.merge_namespaces("a", ["b"]))
        with pytest.raises(StateAccessError, match="no namespaces"):
            job.run(merging, [("key",)])

    def test_a_key_group_of_another_subtask(self, job):
        job.parallelism = 2
        with pytest.raises(FunctionError, match="key group 7 is not one of this subtask's: 0 to 3"):
            job.run(Acting(listed, snapshot=lambda _, context: context.raw_keyed_output(7)), [])

    def test_another_type_of_user_keys(self, job):
        job.run(Acting(mapped, snapshot=lambda self, _: self.state.put("a", 1)), [])
        other = MapStateDescriptor("map", int, int)
        with pytest.raises(StateMigrationError, match=r"user keys.*str.*int.*another name"):
            job.run(Acting(lambda store: store.get_broadcast_state(other)), [])


def test_a_broadcast_map_is_a_map(job):
    def use(self, _):
        state = self.state
        state["a"] = 1
        state.put_all({"b": 2, "c": None})
        state.remove("missing")
        assert state.contains("c")
        assert state["c"] is None
        assert (state["missing"], "missing" in state) == (None, False)
        del state["b"]
        assert sorted(state) == ["a", "c"]
        for call in (lambda: state.put(None, 1), lambda: state.put_all(None)):
            with pytest.raises(ValueError, match="nothing was changed"):
                call()

    async def use_asynchronously(self, _):
        state = self.state
        await state.async_put("d", 4)
        assert await state.async_get("d") == 4
        entries = await state.async_items()
        assert {entry async for entry in entries} == {("a", 1), ("c", None), ("d", 4)}
        await state.async_remove("d")
        assert not await state.async_contains("d")
        return []

    job.run(Acting(mapped, use), [("key",)])
    job.run(Acting(mapped, use_asynchronously), [("key",)])
    found = []
    job.run(Acting(lambda store: found.extend(mapped(store).items())), [])
    assert sorted(found, key=str) == [("a", 1), ("c", None)]


def test_what_is_not_declared_any_more_is_logged(job, caplog):
    job.run(Acting(listed, snapshot=lambda self, _: self.state.add(1)), [])
    with caplog.at_level(logging.INFO):
        job.run(Plain(), [])
    assert "operator state not declared any more, and kept: list" in caplog.text


def test_a_reader_from_outside_misses_a_file_of_operator_state(job):
    wide = ListStateDescriptor("wide", bytes)
    function = Acting(
        lambda store: store.get_list_state(wide),
        snapshot=lambda self, _: self.state.update([bytes(INLINE_BYTES)]),
    )
    job.run(function, [])
    with open_version(job.storage, uid=job.uid) as reader:
        (manifest,) = reader.manifests
        assert isinstance(manifest, Manifest)
        (name,) = manifest.protected
    job.storage.delete([name])
    with pytest.raises(CorruptStateError, match=r"operator-.* is missing"):
        open_version(job.storage, uid=job.uid)


def test_functions_without_operator_state_store_none(job):
    job.run(Plain(), [])
    with open_version(job.storage, uid=job.uid) as reader:
        assert [manifest.operator_state for manifest in reader.manifests] == [{}]
