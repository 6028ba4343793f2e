"""Operator state after restarts, rescales and forks (docs/reference/state.md)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from forebay_engine.versions import Janitor, RestoreFrom
from forebay_engine.versions.format.blobs import INLINE_BYTES
from forebay_state_api.errors import (
    ConfigurationError,
    CorruptStateError,
    FunctionError,
    StateMigrationError,
)
from forebay_state_api.job.descriptors import ListStateDescriptor
from forebay_state_api.job.operator_state import CheckpointedFunction, ListCheckpointed
from forebay_testing.backends.operator_state import LIST, Kept, Silent, all_three, write_three

from ..subjects import OnReference

RESCALES = [(1, 2), (2, 5), (4, 3), (8, 1), (2, 1), (5, 2), (3, 4), (1, 8)]
"""Parallelism before and after, all within the 8 key groups of the job."""


class Streams(Silent, CheckpointedFunction):
    """Byte streams: one per subtask, one per key group."""

    def __init__(self, *, write):
        self.write = write
        self.seen = {}

    def initialize_state(self, context):
        self.context = context.keyed_state_store
        keyed = {group: s.read() for group, s in context.raw_keyed_inputs.items()}
        self.seen[self.context.subtask_index] = [s.read() for s in context.raw_inputs], keyed

    def snapshot_state(self, context):
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

    def __init__(self, own):
        self.own = own
        self.seen = {}
        self.restored = None

    def restore_state(self, state):
        self.restored = state

    def open(self, context):
        self.subtask = context.subtask_index
        self.seen[self.subtask] = self.restored

    def snapshot_state(self, version):
        assert version > 0
        return self.own(self.subtask)


def even(elements, parallelism):
    """Return the share of ``elements`` that each subtask should get."""
    base, extra = divmod(len(elements), parallelism)
    sizes = [base + (n < extra) for n in range(parallelism)]
    starts = [sum(sizes[:n]) for n in range(parallelism)]
    return [elements[start : start + size] for start, size in zip(starts, sizes, strict=True)]


class TestRestoring(OnReference):
    """Operator state is stored with the manifest: one backend is enough."""

    @pytest.fixture
    def three(self, new_job):
        """A job of some parallelism whose first version holds `write_three`."""

        def make(parallelism, max_parallelism=8):
            job = new_job(parallelism=parallelism, max_parallelism=max_parallelism)
            job.run(Kept(all_three, write_three), [])
            return job

        return make

    def test_the_first_version_is_not_restored(self, new_job):
        job = new_job(parallelism=2)
        function = Kept(all_three, write_three)
        job.run(function, [])
        empty = {"list": [], "union": [], "broadcast": {}, "restored": False}
        assert function.seen == {0: empty, 1: empty}

    def test_with_the_same_parallelism_each_subtask_keeps_its_own(self, three):
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
    def test_rescale(self, three, before, after, most):
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
    def test_rescale_of_byte_streams(self, new_job, before, after, most):
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
    def test_rescale_of_list_checkpointed(self, new_job, before, after, most):
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

    def test_byte_streams_that_nobody_touches_are_kept(self, new_job):
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
    def test_what_is_not_declared_any_more_is_kept(self, three, parallelisms):
        job = three(3)
        for parallelism in parallelisms:
            job.restart(parallelism=parallelism)
            job.run(Silent(), [("key",)])
        function = Kept(all_three)
        job.run(function, [])
        found = [number for subtask in function.seen.values() for number in subtask["list"]]
        assert found == [0, 10, 11, 20, 21, 22]
        assert function.seen[0]["union"] == ["subtask 0", "subtask 1", "subtask 2"]

    def test_a_failed_batch_leaves_the_old_version(self, three):
        job = three(2)
        job.run(Kept(all_three, lambda states, _: states["list"].add(99)), [], crash=True)
        with pytest.raises(FunctionError, match=r"snapshot_state .* raised KeyError"):
            job.run(Kept(all_three, lambda states, _: states["nowhere"]), [("key",)])
        job.restart()
        function = Kept(all_three)
        job.run(function, [])
        assert [seen["list"] for seen in function.seen.values()] == [[0], [10, 11]]

    def test_a_union_is_written_by_its_part(self, three):
        job = three(2)
        writes = [
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

    def test_large_state_lies_in_checked_files(self, new_job):
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

    def test_another_type_is_refused_and_a_wider_one_is_read(self, three):
        job = three(2)
        texts = ListStateDescriptor("list", str)
        with pytest.raises(StateMigrationError, match=r"'list'.*int.*str.*another name"):
            job.run(Kept(lambda store: {"list": store.get_list_state(texts)}), [])
        reals = Kept(
            lambda store: {"list": store.get_list_state(ListStateDescriptor("list", float))}
        )
        job.run(reals, [])
        assert [seen["list"] for seen in reals.seen.values()] == [[0.0], [10.0, 11.0]]

    def test_another_way_is_refused(self, three):
        job = three(1)
        with pytest.raises(
            StateMigrationError, match=r"stored by get_list_state.*get_union_list_state"
        ):
            job.run(Kept(lambda store: {"list": store.get_union_list_state(LIST)}), [])

    def test_one_name_in_two_ways(self, new_job):
        def declare(store):
            assert store.get_list_state(LIST) is store.get_list_state(LIST)
            return {"list": store.get_union_list_state(LIST)}

        with pytest.raises(ConfigurationError, match=r"get_list_state.*get_union_list_state"):
            new_job().run(Kept(declare), [])

    def test_none_is_no_element_and_nothing_aliases(self, new_job):
        nested = ListStateDescriptor("nested", list[int])

        def write(states, subtask):
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

    def test_operator_state_comes_along(self, new_job):
        source = new_job(parallelism=2, query="source")
        source.run(Kept(all_three, write_three), [])
        fork = new_job(parallelism=3, query="fork", restore=RestoreFrom("source"))
        function = Kept(all_three)
        fork.run(function, [])
        assert [function.seen[n]["list"] for n in range(3)] == [[0], [10], [11]]
        assert function.seen[2]["union"] == ["subtask 0", "subtask 1"]
        assert all(seen["restored"] for seen in function.seen.values())
        without = new_job(query="other", restore=RestoreFrom("source"))
        with pytest.raises(StateMigrationError, match="'broadcast', 'list', 'union'"):
            without.run(Kept(lambda _: {}), [])

    def test_large_operator_state_is_not_copied(self, new_job):
        source = new_job(query="source")
        numbers = list(range(20_000))
        source.run(Kept(all_three, lambda states, _: states["list"].update(numbers)), [])
        fork = new_job(query="fork", restore=RestoreFrom("source"))
        for _ in range(2):
            fork.restart()
            function = Kept(all_three)
            fork.run(function, [])
            _sweep(source)
            assert function.seen[0]["list"] == numbers
        assert fork.storage.list("data") == []
        assert len(source.storage.list("data")) == 1


def _sweep(job):
    """Run a pass of the job's janitor that keeps next to nothing."""
    janitor = Janitor(job.storage, run_key=job.run_key, retention=1, min_age=timedelta(0))
    janitor.sweep(job.batch_id)
