"""`OperatorVersions`: its requests, the parents that a backend gets, and refused states."""

import uuid

import attrs
import pytest

from forebay_engine.versions.format.manifest import read_manifest
from forebay_engine.versions.format.markers import list_version
from forebay_engine.versions.writer_memory import WriterMemory
from forebay_state_api.contract.files import CommittedState, StateFile
from forebay_state_api.errors import ConfigurationError, CorruptStateError, StateAccessError
from forebay_state_api.keys import KeyGroupRange
from forebay_testing.storage import CountingStorage, Fault, FaultyStorage


def made(storage, version):
    """Return the manifests of a version, by subtask."""
    listing = list_version(storage, version)
    found = [read_manifest(storage, made.name) for made in listing.manifests]
    return sorted(found, key=lambda manifest: manifest.made.subtask)


class ListedNames(CountingStorage):
    """Counts the names in listings."""

    names = 0

    def around(self, operation, name, request):
        found = super().around(operation, name, request)
        self.names += len(found) if operation.startswith("list") else 0
        return found


class TestCost:
    """The cost of the protocol per task, in requests."""

    def test_an_ordinary_batch(self, query):
        run = query.run(1)
        run.batches(0, 1)
        run.memory.forget()
        storage = CountingStorage(query.storage)
        task = run.begin(2, storage=storage)
        data_reads = len(task.version.parents[0].files)
        written = task.write()
        storage.requests = [r for r in storage.requests if not r[1].startswith("data/")]
        task.commit(written)
        folders = [(operation, name.split("/")[0]) for operation, name in storage.requests]
        assert data_reads > 0
        assert folders == [
            ("list", "epochs"),
            ("put_if_absent", "versions"),
            ("list", "versions"),
            ("get", "versions"),
            ("get", "taken"),
            ("put", "versions"),
        ]

    def test_a_process_remembers_what_it_put(self, query):
        run = query.run(1)
        run.batches(0, 1)
        storage = CountingStorage(query.storage)
        task = run.begin(2, storage=storage)
        written = task.write()
        storage.requests = [r for r in storage.requests if not r[1].startswith("data/")]
        task.commit(written)
        folders = [(operation, name.split("/")[0]) for operation, name in storage.requests]
        assert folders == [
            ("put_if_absent", "versions"),
            ("list", "versions"),
            ("get", "taken"),
            ("put", "versions"),
        ]

    def test_a_manifest_of_another_attempt_is_read(self, query):
        """The newest one in storage counts, whatever the process has put."""
        run = query.run(1)
        run.batch(0)
        run.begin(0, memory=WriterMemory()).commit()
        storage = CountingStorage(query.storage)
        run.begin(1, storage=storage)
        gets = [name for operation, name in storage.requests if operation == "get"]
        assert sum("manifest" in name for name in gets) == 1

    @pytest.mark.long
    @pytest.mark.parametrize("parallelism", [1, 64, pytest.param(1024, marks=pytest.mark.slow)])
    def test_the_number_of_subtasks_makes_it_no_dearer(self, query, parallelism):
        """It holds within a run, and in the first batch of a run with the same parallelism."""
        run = query.run(parallelism)
        run.batches(0, 1, max_parallelism=2048)
        storage = ListedNames(query.storage)
        middle, last = parallelism // 2, parallelism - 1
        for subtask in sorted({0, middle, last}):
            storage.names, storage.requests = 0, []
            run.begin(2, subtask, storage=storage, max_parallelism=2048).commit()
            requests = [r for r in storage.requests if not r[1].startswith("data/")]
            assert len(requests) == 4
            assert storage.names <= 16
        again = query.run(parallelism)
        again.begin(2, 0, max_parallelism=2048)
        storage.names = 0
        again.begin(2, last, storage=storage, max_parallelism=2048).commit()
        assert storage.names <= 16

    def test_after_a_rescale_one_get_per_parent(self, query):
        query.run(4).batches(0, 1)
        run = query.run(1)
        run.begin(2)
        storage = CountingStorage(query.storage)
        run.begin(2, storage=storage)
        gets = [name for operation, name in storage.requests if operation == "get"]
        assert sum("manifest" in name for name in gets) == 4

    def test_history_does_not_make_it_dearer(self, query):
        run = query.run(1)
        run.batches(0, 30)
        storage = CountingStorage(query.storage)
        run.begin(31, storage=storage)
        requests = [r for r in storage.requests if not r[1].startswith("data/")]
        assert len(requests) == 2


class TestParents:
    def test_the_same_range_is_whole(self, query):
        run = query.run(2)
        run.batch(0)
        (parent,) = run.begin(1, 1).version.parents
        assert (parent.range, parent.whole) == (KeyGroupRange(4, 7), True)
        assert parent.manifest_id == made(query.storage, 1)[1].id

    def test_a_smaller_range_is_clipped_with_its_files(self, query):
        query.run(1).batch(0)
        (parent,) = query.run(4).begin(1, 1).version.parents
        assert (parent.range, parent.whole) == (KeyGroupRange(2, 3), False)
        assert [file.range for file in parent.files] == [KeyGroupRange(2, 3)]

    def test_a_larger_range_has_several_in_key_group_order(self, query):
        query.run(4).batch(0)
        parents = query.run(1).begin(1).version.parents
        ranges = [parent.range for parent in parents]
        assert ranges == [KeyGroupRange(n, n + 1) for n in (0, 2, 4, 6)]
        assert all(file.range == p.range for p in parents for file in p.files)

    def test_files_outside_the_range_are_left_out(self, query):
        query.run(4).batch(0)
        query.run(1).batch(1)
        (parent,) = query.run(4).begin(2, 3).version.parents
        assert [file.range for file in parent.files] == [KeyGroupRange(6, 7)]


class TestManifest:
    def test_it_says_who_made_it_of_what(self, query):
        run = query.run(2)
        run.batch(0)
        run.batch(1)
        first, second = made(query.storage, 1), made(query.storage, 2)
        assert [list(m.parents) for m in second] == [[m.id] for m in first]
        manifest = second[1]
        assert (manifest.uid, manifest.backend, manifest.opened_version) == ("op", "toy", 1)
        assert manifest.made.range == KeyGroupRange(4, 7)
        assert (manifest.made.subtask, manifest.made.parallelism) == (1, 2)
        assert (manifest.made.run_key, manifest.made.epoch) == (run.key, 1)

    def test_everything_comes_back(self, query):
        file = StateFile(name="data/a", size=3, range=KeyGroupRange(1, 2), meta={"role": "x"})
        committed = CommittedState(
            files=[file],
            meta={"next": [1, {"a": b"b"}]},
            protected=["data/b"],
            keys=7,
            bytes_total=3,
            bytes_written=2,
        )
        task = query.run(1).begin(0)
        described = {"count": {"kind": "value", "ttl": False}}
        identity = task.version.commit(
            committed, descriptions=described, operator_state={"offsets": [1, 2]}
        )
        (manifest,) = made(query.storage, 1)
        assert (manifest.id, list(manifest.files)) == (identity, [file])
        assert (manifest.meta, list(manifest.protected)) == (committed.meta, ["data/b"])
        assert manifest.descriptions == described
        assert manifest.operator_state == {"offsets": [1, 2]}
        assert manifest.metrics == {"keys": 7, "bytes_total": 3, "bytes_written": 2}
        assert manifest.names == {"data/a", "data/b"}

    def test_undeclared_state_keeps_its_description(self, query):
        run = query.run(2)
        for subtask, names in ((0, "ab"), (1, "b")):
            described = {name: {"was": subtask} for name in names}
            task = run.begin(0, subtask)
            task.version.commit(CommittedState(files=[]), descriptions=described)
        task = query.run(1).begin(1)
        task.version.commit(CommittedState(files=[]), descriptions={"b": {"is": "new"}})
        (manifest,) = made(query.storage, 2)
        assert manifest.descriptions == {"a": {"was": 0}, "b": {"is": "new"}}

    def test_one_of_another_attempt_is_corrupt(self, query):
        run = query.run(2)
        run.batch(0)
        one, other = (m.name for m in list_version(query.storage, 1).manifests)
        query.storage.put(other, query.storage.get(one))
        with pytest.raises(CorruptStateError):
            read_manifest(query.storage, other)

    def test_it_is_frozen(self, query):
        query.run(1).batch(0)
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            made(query.storage, 1)[0].uid = "x"


class TestWhatDoesNotFit:
    def test_another_max_parallelism_names_the_number_to_pass(self, query):
        query.run().batch(0)
        before = query.storage.list()
        with pytest.raises(ConfigurationError, match="pass max_parallelism=8 instead of 16"):
            query.run().begin(1, max_parallelism=16)
        assert query.storage.list() == before

    def test_another_backend_names_both(self, query):
        query.run().batch(0)
        with pytest.raises(ConfigurationError, match=r"'toy'.*'lsm'.*state.backend to 'toy'"):
            query.run().begin(1, backend_name="lsm")

    def test_a_second_commit_of_one_task(self, query):
        task = query.run().begin(0)
        task.commit()
        with pytest.raises(StateAccessError, match="already been committed"):
            task.commit()

    def test_a_manifest_that_disappears(self, query):
        run = query.run(1)
        run.batch(0)
        (manifest,) = list_version(query.storage, 1).manifests
        run.memory.forget()
        gone = FaultyStorage(
            query.storage,
            latency=lambda op, name: op == "get" and query.storage.delete([manifest.name]),
        )
        with pytest.raises(CorruptStateError, match="no longer retained"):
            run.begin(1, storage=gone)

    def test_a_commit_that_failed_commits_nothing(self, query, expected):
        run = query.run(1)
        run.batch(0)
        broken = FaultyStorage(query.storage, Fault(operation="put", name="*/manifest-*"))
        with pytest.raises(Exception, match="injected"):
            run.begin(1, storage=broken).commit()
        run.batch(1)
        assert run.opened(2) == expected(0, 1)


class TestTwoOperatorsOfOneUid:
    def test_found_when_the_second_begins(self, query):
        spark_run = str(uuid.uuid4())
        query.run(spark_run=spark_run).batch(0)
        with pytest.raises(ConfigurationError, match="operator 'op': the query has two operators"):
            query.run(spark_run=spark_run).begin(0)

    def test_found_by_the_first_when_the_second_came_later(self, query):
        spark_run = str(uuid.uuid4())
        first, second = (query.run(spark_run=spark_run) for _ in range(2))
        first.batch(0)
        second.batch(1)
        with pytest.raises(ConfigurationError, match="operator 'op': the query has two operators"):
            first.begin(1).commit()

    def test_found_in_one_action_on_a_bounded_dataframe(self, query):
        query.run(action="5").batch(0)
        with pytest.raises(ConfigurationError, match="operator 'op': the query has two operators"):
            query.run(action="5").begin(0)

    def test_another_action_makes_the_version_again(self, query, expected):
        query.run(data="a", action="5").batch(0)
        query.run(data="b", action="6").batch(0)
        assert query.run(action="7").opened(1) == expected("0b")

    def test_one_action_may_go_through_several_batches(self, query, expected):
        query.run(data="a", action="5").batch(0)
        query.run(data="b", action="5").batch(1)
        assert query.run(action="6").opened(2) == expected("0a", "1b")

    def test_a_job_group_of_the_users_own_proves_nothing(self, query, expected):
        query.run(data="a", spark_run="nightly").batch(0)
        again = query.run(data="b", spark_run="nightly")
        again.batch(0)
        assert again.opened(1) == expected("0b")
