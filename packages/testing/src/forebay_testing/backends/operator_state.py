"""Operator state (docs/reference/state.md), and notifications of committed versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from forebay_engine.versions.format.blobs import INLINE_BYTES
from forebay_state_api.errors import (
    ConfigurationError,
    CorruptStateError,
    FunctionError,
    StateMigrationError,
)
from forebay_state_api.job.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.job.functions import KeyedProcessFunction
from forebay_state_api.job.operator_state import (
    CheckpointedFunction,
    CheckpointListener,
    ListCheckpointed,
)
from forebay_testing.backends.subject import BackendSubject, NewJob
from forebay_testing.job import KeyedJob

RESCALES = [(1, 2), (2, 5), (4, 3), (8, 1), (2, 1), (5, 2), (3, 4), (1, 8)]
"""Parallelism before and after, all within the 8 key groups of the job."""

LIST = ListStateDescriptor("list", int)
UNION = ListStateDescriptor("union", str)
BROADCAST: MapStateDescriptor[str, int] = MapStateDescriptor("broadcast", str, int)


class Silent(KeyedProcessFunction[Any, Any, Any]):
    """Emits nothing and keeps nothing."""

    def process_element(self, row: Any, ctx: Any) -> Any:
        """Do nothing."""


class Kept(Silent, CheckpointedFunction):
    """Reports the restored state, by subtask, and lets the test write in ``snapshot_state``."""

    def __init__(
        self,
        declare: Callable[[Any], dict[str, Any]],
        write: Callable[[Any, int], None] = lambda _states, _subtask: None,
    ) -> None:
        """``declare(store)`` returns states by name; ``write(states, subtask)`` changes them."""
        self.declare = declare
        self.write = write
        self.seen: dict[int, dict[str, Any]] = {}
        """Subtask → the contents of each state; shared by all copies."""

    def initialize_state(self, context: Any) -> None:
        subtask = context.keyed_state_store.subtask_index
        self.subtask = subtask
        self.states = self.declare(context.operator_state_store)
        self.seen[subtask] = {name: _content(state) for name, state in self.states.items()}
        self.seen[subtask]["restored"] = context.is_restored

    def snapshot_state(self, context: Any) -> None:
        del context
        self.write(self.states, self.subtask)


class Streams(Silent, CheckpointedFunction):
    """Byte streams: one per subtask, one per key group."""

    def __init__(self, *, write: bool) -> None:
        self.write = write
        self.seen: dict[int, Any] = {}

    def initialize_state(self, context: Any) -> None:
        self.context = context.keyed_state_store
        keyed = {group: s.read() for group, s in context.raw_keyed_inputs.items()}
        self.seen[self.context.subtask_index] = [s.read() for s in context.raw_inputs], keyed

    def snapshot_state(self, context: Any) -> None:
        if not self.write:
            return
        subtask = self.context.subtask_index
        with context.raw_output as stream:
            stream.write(b"of subtask ")
            stream.write(str(subtask).encode())
        most = self.context.max_parallelism
        for group in range(most):
            if group * self.context.parallelism // most == subtask:
                context.raw_keyed_output(group).write(b"group %d" % group)


class Listed(Silent, ListCheckpointed):
    """A list that belongs to its subtask."""

    def __init__(self, own: Callable[[int], list[Any]]) -> None:
        self.own = own
        self.seen: dict[int, Any] = {}
        self.restored: list[Any] | None = None

    def restore_state(self, state: list[Any]) -> None:
        self.restored = state

    def open(self, context: Any) -> None:
        self.subtask = context.subtask_index
        self.seen[self.subtask] = self.restored

    def snapshot_state(self, version: int) -> list[Any]:
        assert version > 0
        return self.own(self.subtask)


def _content(state: Any) -> Any:
    return dict(state.items()) if hasattr(state, "items") else state.get()


def all_three(store: Any) -> dict[str, Any]:
    """One state for each way of redistribution."""
    return {
        "list": store.get_list_state(LIST),
        "union": store.get_union_list_state(UNION),
        "broadcast": store.get_broadcast_state(BROADCAST),
    }


def write_three(states: Any, subtask: int) -> None:
    """Subtask ``i`` keeps ``i + 1`` numbers, its own name, and a copy of the map."""
    states["list"].update([subtask * 10 + n for n in range(subtask + 1)])
    states["union"].update([f"subtask {subtask}"])
    states["broadcast"].put("n", subtask)


def even(elements: list[Any], parallelism: int) -> list[list[Any]]:
    """Return the share of ``elements`` that each subtask should get."""
    base, extra = divmod(len(elements), parallelism)
    sizes = [base + (n < extra) for n in range(parallelism)]
    starts = [sum(sizes[:n]) for n in range(parallelism)]
    return [elements[start : start + size] for start, size in zip(starts, sizes, strict=True)]


class OperatorStateTests(BackendSubject):
    """Operator state is stored by the manifest, without any work of a backend."""

    @pytest.fixture
    def three(self, new_job: NewJob) -> Callable[[int], KeyedJob]:
        """A job of some parallelism whose first version holds `write_three`."""

        def make(parallelism: int, max_parallelism: int = 8) -> KeyedJob:
            job: KeyedJob = new_job(parallelism=parallelism, max_parallelism=max_parallelism)
            job.run(Kept(all_three, write_three), [])
            return job

        return make

    def test_the_first_version_is_not_restored(self, new_job: NewJob) -> None:
        job = new_job(parallelism=2)
        function = Kept(all_three, write_three)
        job.run(function, [])
        empty = {"list": [], "union": [], "broadcast": {}, "restored": False}
        assert function.seen == {0: empty, 1: empty}

    def test_with_the_same_parallelism_each_subtask_keeps_its_own(
        self, three: Callable[[int], KeyedJob]
    ) -> None:
        job = three(3)
        for _ in range(3):
            job.restart()
            function = Kept(all_three)
            job.run(function, [])
        assert function.seen == {
            subtask: {
                "list": [subtask * 10 + n for n in range(subtask + 1)],
                "union": ["subtask 0", "subtask 1", "subtask 2"],
                "broadcast": {"n": subtask},
                "restored": True,
            }
            for subtask in range(3)
        }

    @pytest.mark.parametrize("most", [10, 128])
    @pytest.mark.parametrize(("before", "after"), RESCALES)
    def test_rescale(
        self, three: Callable[..., KeyedJob], before: int, after: int, most: int
    ) -> None:
        job = three(before, most)
        job.restart(parallelism=after)
        function = Kept(all_three)
        job.run(function, [])
        numbers = [old * 10 + n for old in range(before) for n in range(old + 1)]
        shares = even(numbers, after)
        assert function.seen == {
            subtask: {
                "list": shares[subtask],
                "union": [f"subtask {old}" for old in range(before)],
                "broadcast": {"n": subtask % before},
                "restored": True,
            }
            for subtask in range(after)
        }
        job.restart(parallelism=before)
        back = Kept(all_three)
        job.run(back, [])
        whole = [number for subtask in range(before) for number in back.seen[subtask]["list"]]
        assert whole == numbers
        assert back.seen[0]["union"] == [f"subtask {old}" for old in range(before)]

    @pytest.mark.parametrize("most", [10, 128])
    @pytest.mark.parametrize(("before", "after"), RESCALES)
    def test_rescale_of_byte_streams(
        self, new_job: NewJob, before: int, after: int, most: int
    ) -> None:
        job = new_job(parallelism=before, max_parallelism=most)
        job.run(Streams(write=True), [])
        job.restart(parallelism=after)
        function = Streams(write=False)
        job.run(function, [])
        streams = even([b"of subtask %d" % old for old in range(before)], after)
        for subtask in range(after):
            raw, keyed = function.seen[subtask]
            owned = [group for group in range(most) if group * after // most == subtask]
            assert raw == streams[subtask]
            assert keyed == {group: b"group %d" % group for group in owned}
        last = Streams(write=False)
        job.run(last, [])
        assert all(seen == ([], {}) for seen in last.seen.values())

    @pytest.mark.parametrize("most", [10, 128])
    @pytest.mark.parametrize(("before", "after"), [*RESCALES, (3, 3)])
    def test_rescale_of_list_checkpointed(
        self, new_job: NewJob, before: int, after: int, most: int
    ) -> None:
        job = new_job(parallelism=before, max_parallelism=most)
        first = Listed(lambda subtask: [f"{subtask}.{n}" for n in range(3 - subtask % 2)])
        job.run(first, [])
        assert set(first.seen.values()) == {None}
        job.restart(parallelism=after)
        second = Listed(lambda _: [])
        job.run(second, [])
        lists = [first.own(old) for old in range(before)]
        shares = lists if before == after else even([one for own in lists for one in own], after)
        assert second.seen == dict(enumerate(shares))

    def test_byte_streams_that_nobody_touches_are_kept(self, new_job: NewJob) -> None:
        job = new_job(parallelism=3)
        job.run(Streams(write=True), [])
        for parallelism in (3, 2, 2, 5):
            job.restart(parallelism=parallelism)
            job.run(Silent(), [])
        last = Streams(write=False)
        job.run(last, [])
        assert [raw for raw, _ in last.seen.values() if raw] == [
            [b"of subtask 0"],
            [b"of subtask 1"],
            [b"of subtask 2"],
        ]
        assert sorted(group for _, keyed in last.seen.values() for group in keyed) == list(range(8))

    @pytest.mark.parametrize("parallelisms", [[3], [2], [2, 3], [8, 1, 3]], ids=str)
    def test_what_is_not_declared_any_more_is_kept(
        self, three: Callable[[int], KeyedJob], parallelisms: list[int]
    ) -> None:
        job = three(3)
        for parallelism in parallelisms:
            job.restart(parallelism=parallelism)
            job.run(Silent(), [("key",)])
        function = Kept(all_three)
        job.run(function, [])
        found = [number for subtask in function.seen.values() for number in subtask["list"]]
        assert found == [0, 10, 11, 20, 21, 22]
        assert function.seen[0]["union"] == ["subtask 0", "subtask 1", "subtask 2"]

    def test_a_failed_batch_leaves_the_old_version(self, three: Callable[[int], KeyedJob]) -> None:
        job = three(2)
        job.run(Kept(all_three, lambda states, _: states["list"].add(99)), [], crash=True)
        with pytest.raises(FunctionError, match=r"snapshot_state .* raised KeyError"):
            job.run(Kept(all_three, lambda states, _: states["nowhere"]), [("key",)])
        job.restart()
        function = Kept(all_three)
        job.run(function, [])
        assert [seen["list"] for seen in function.seen.values()] == [[0], [10, 11]]

    def test_a_union_is_written_by_its_part(self, three: Callable[[int], KeyedJob]) -> None:
        job = three(2)
        writes: list[Callable[[Any, int], None]] = [
            lambda states, subtask: states["union"].add(f"more of {subtask}"),
            lambda states, subtask: states["union"].clear() if subtask == 0 else None,
            lambda states, subtask: None,
        ]
        found = []
        for write in writes:
            function = Kept(all_three, write)
            job.run(function, [])
            found.append(function.seen[1]["union"])
        job.run(last := Kept(all_three), [])
        assert found[1] == ["subtask 0", "more of 0", "subtask 1", "more of 1"]
        assert found[2] == last.seen[0]["union"] == ["subtask 1", "more of 1"]

    def test_keyed_and_operator_state_are_one_version(self, new_job: NewJob) -> None:
        class Both(KeyedProcessFunction[Any, Any, Any], CheckpointedFunction):
            def initialize_state(self, context: Any) -> None:
                value = ValueStateDescriptor("v", int, default=0)
                self.value = context.keyed_state_store.get_state(value)
                self.list = context.operator_state_store.get_list_state(LIST)

            def process_element(self, row: Any, ctx: Any) -> Any:
                self.value.update((self.value.value() or 0) + 1)
                self.list.add(self.value.value())
                return [(ctx.current_key, self.value.value(), self.list.get())]

            def snapshot_state(self, context: Any) -> None:
                del context

        job = new_job()
        assert job.run(Both(), [("a",)]) == [("a", 1, [1])]
        job.run(Both(), [("a",)], crash=True)
        job.restart(parallelism=2)
        assert job.run(Both(), [("a",)])[0][1] == 2

    def test_large_state_lies_in_checked_files(self, new_job: NewJob) -> None:
        job = new_job()
        wide = ListStateDescriptor("wide", bytes)
        function = Kept(
            lambda store: {"wide": store.get_list_state(wide)},
            lambda states, _: states["wide"].update([bytes(INLINE_BYTES)] * 2),
        )
        job.run(function, [])
        untouched = Kept(function.declare)
        job.run(untouched, [])
        job.run(untouched, [])
        assert untouched.seen[0]["wide"] == [bytes(INLINE_BYTES)] * 2
        files = [info.name for info in job.storage.list("data") if "/operator-" in info.name]
        assert len(files) == 1
        whole = job.storage.get(files[0])
        for damaged in (whole[:-1], whole[:-1] + b"x"):
            job.storage.put(files[0], damaged)
            with pytest.raises(CorruptStateError, match=r"operator-.*'wide' in version 3"):
                job.run(untouched, [])
        job.storage.delete(files)
        with pytest.raises(CorruptStateError, match=r"operator-.*'wide' in version 3.*missing"):
            job.run(untouched, [])

    def test_another_type_is_refused_and_a_wider_one_is_read(
        self, three: Callable[[int], KeyedJob]
    ) -> None:
        job = three(2)
        texts = ListStateDescriptor("list", str)
        with pytest.raises(StateMigrationError, match=r"'list'.*int.*str.*another name"):
            job.run(Kept(lambda store: {"list": store.get_list_state(texts)}), [])
        reals = Kept(
            lambda store: {"list": store.get_list_state(ListStateDescriptor("list", float))}
        )
        job.run(reals, [])
        assert [seen["list"] for seen in reals.seen.values()] == [[0.0], [10.0, 11.0]]

    def test_another_way_is_refused(self, three: Callable[[int], KeyedJob]) -> None:
        job = three(1)
        with pytest.raises(
            StateMigrationError, match=r"stored by get_list_state.*get_union_list_state"
        ):
            job.run(Kept(lambda store: {"list": store.get_union_list_state(LIST)}), [])

    def test_one_name_in_two_ways(self, new_job: NewJob) -> None:
        def declare(store: Any) -> dict[str, Any]:
            assert store.get_list_state(LIST) is store.get_list_state(LIST)
            return {"list": store.get_union_list_state(LIST)}

        with pytest.raises(ConfigurationError, match=r"get_list_state.*get_union_list_state"):
            new_job().run(Kept(declare), [])

    def test_none_is_no_element_and_nothing_aliases(self, new_job: NewJob) -> None:
        nested = ListStateDescriptor("nested", list[int])

        def write(states: Any, subtask: int) -> None:
            del subtask
            given = [1]
            states["nested"].add(given)
            given.append(2)
            states["nested"].get()[0].append(3)
            for refused in (None, [[1], None]):
                with pytest.raises(ValueError, match="nothing was changed"):
                    states["nested"].update(refused)
            with pytest.raises(ValueError, match="nothing was changed"):
                states["nested"].add(None)

        job = new_job()
        job.run(Kept(lambda store: {"nested": store.get_list_state(nested)}, write), [])
        function = Kept(lambda store: {"nested": store.get_list_state(nested)})
        job.run(function, [])
        assert function.seen[0]["nested"] == [[1]]


class CheckpointListenerTests(BackendSubject):
    """Notifications of committed versions: recipients, time and order."""

    def test_the_life_of_a_function(self, new_job: NewJob) -> None:
        calls: list[Any] = []

        class Telling(
            KeyedProcessFunction[Any, Any, Any], CheckpointedFunction, CheckpointListener
        ):
            def initialize_state(self, context: Any) -> None:
                calls.append(("initialize_state", context.is_restored))

            def open(self, context: Any) -> None:
                calls.append(("open", context.batch_id))

            def notify_checkpoint_complete(self, version: int) -> None:
                calls.append(("complete", version))

            def process_element(self, row: Any, ctx: Any) -> Any:
                del ctx
                calls.append(("record", row))

            def snapshot_state(self, context: Any) -> None:
                calls.append(("snapshot_state", context.version))

            def close(self) -> None:
                calls.append(("close", None))

        job = new_job()
        job.run(Telling(), [("a",)])
        assert [name for name, _ in calls] == [
            "initialize_state",
            "open",
            "record",
            "snapshot_state",
            "close",
        ]
        calls.clear()
        job.run(Telling(), [("a",)], crash=True)
        job.run(Telling(), [("a",)])
        whole = [
            ("initialize_state", True),
            ("open", 1),
            ("complete", 1),
            ("record", ("a",)),
            ("snapshot_state", 2),
            ("close", None),
        ]
        crashed = [call for call in whole if call[0] != "snapshot_state"]
        assert calls == crashed + whole

    def test_an_exception_fails_the_batch_and_revokes_nothing(self, new_job: NewJob) -> None:
        class Failing(Silent, CheckpointListener):
            def notify_checkpoint_complete(self, version: int) -> None:
                raise LookupError(f"version {version}")

        job = new_job()
        job.run(Failing(), [])
        with pytest.raises(FunctionError, match=r"notify_checkpoint_complete .*version 1"):
            job.run(Failing(), [])
        assert job.run(Silent(), []) == []
