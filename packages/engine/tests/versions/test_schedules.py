"""The schedules that the protocol handles; numbered as in docs/decisions/0001."""

import uuid
from datetime import timedelta

import pytest

from forebay_engine.versions.choosing.reader import open_version
from forebay_engine.versions.cleaning.janitor import Janitor
from forebay_engine.versions.format.epochs import list_epochs
from forebay_engine.versions.format.layout import version_folder
from forebay_state_api.errors import (
    ConfigurationError,
    CorruptStateError,
    FencedError,
    StorageError,
)
from forebay_testing.sequencer import Sequencer
from forebay_testing.storage import Fault, FaultKind, FaultyStorage


class TestSchedule01TwoDrivers:
    def test_the_older_driver_stops_and_no_state_is_mixed(self, query, expected):
        older, newer = query.run(data="a"), query.run(data="b")
        older.batches(0, 2)
        newer.batch(3)
        with pytest.raises(FencedError, match=r"newer run.*checkpoint was copied"):
            older.begin(3).commit()
        assert newer.opened(4) == expected("0a", "1a", "2a", "3b")

    def test_a_process_that_is_new_to_the_older_driver_stops_before_it_reads(self, query):
        older, newer = query.run(), query.run()
        older.batches(0, 2)
        newer.batch(3)
        older.memory.forget()
        with pytest.raises(FencedError, match=r"newer run.*checkpoint was copied"):
            older.begin(3)

    def test_the_older_driver_began_a_batch_and_the_newer_one_is_restarted(self, query, expected):
        """A version that only the older driver began is nobody's."""
        older, newer, newest = (query.run(data=data) for data in "abc")
        older.batches(0, 2)
        newer.batch(2)
        begun = [older.begin(3, subtask) for subtask in range(2)]
        for task in begun:
            with pytest.raises(FencedError):
                task.commit()
        assert newer.opened(3) == expected("0a", "1a", "2b")
        newest.batch(3)
        assert newest.opened(4) == expected("0a", "1a", "2b", "3c")

    def test_a_task_of_the_older_driver_that_had_begun_commits_in_vain(self, query, expected):
        older, newer = query.run(data="a"), query.run(data="b")
        older.batches(0, 1)
        early = older.begin(2, 0)
        late = [older.begin(2, subtask).pass_the_fence() for subtask in range(2)]
        newer.batch(2)
        with pytest.raises(FencedError, match="newer run"):
            early.commit()
        for task in late:
            task.commit()
        assert newer.opened(3) == expected("0a", "1a", "2b")

    def test_the_newer_one_keeps_its_origin_when_the_older_one_commits_in_between(
        self, query, expected
    ):
        first, older, newer = query.run(data="x"), query.run(data="a"), query.run(data="b")
        first.batches(0, 1)
        late = [older.begin(1, subtask).pass_the_fence() for subtask in range(2)]
        one = newer.begin(2, 0)
        for task in late:
            task.commit()
        other = newer.begin(2, 1)
        assert one.state | other.state == expected("0x", "1x")


class TestSchedule02SameSessionStartedAgain:
    def test_the_same_keyed_dataframe_is_fenced_after_another_driver(self, query):
        first = query.run()
        first.batch(0)
        query.run().batch(1)
        with pytest.raises(FencedError):
            first.begin(1).commit()

    def test_the_same_run_key_cannot_go_back(self, query):
        run = query.run()
        query.run().batches(0, 3)
        run.batch(4)
        with pytest.raises(FencedError, match="cannot go back"):
            run.begin(2)


class TestSchedule03EpochsAtOnce:
    def test_two_tasks_of_one_run_share_an_epoch(self, query):
        run = query.run()
        with Sequencer() as sequencer:
            storage = _paused(query.storage, sequencer)
            for name, subtask in (("one", 0), ("two", 1)):
                sequencer.start(name, lambda s=subtask: run.begin(0, s, storage=storage))
                sequencer.run_until(name, "put_if_absent epochs/*")
            sequencer.finish("one")
            sequencer.finish("two")
        assert [entry.run_key for entry in list_epochs(query.storage).entries] == [run.key]

    def test_of_two_runs_at_once_one_goes_on(self, query):
        runs = {"one": query.run(), "two": query.run()}
        with Sequencer() as sequencer:
            storage = _paused(query.storage, sequencer)
            for name, run in runs.items():
                sequencer.start(name, lambda r=run: r.begin(0, storage=storage))
                sequencer.run_until(name, "put_if_absent epochs/*")
            outcomes = [_outcome(sequencer, name) for name in runs]
        assert outcomes.count("fenced") <= 1
        newest = list_epochs(query.storage).newest()
        winner = next(run for run in runs.values() if run.key == newest.run_key)
        loser = next(run for run in runs.values() if run is not winner)
        winner.batch(0)
        with pytest.raises(FencedError):
            loser.begin(0)

    def test_two_entries_of_one_run_are_one_epoch(self, query, expected):
        """A task lists after another run minted, and before its own run's entry exists."""
        run, rival = query.run(data="a"), query.run(data="b")
        with Sequencer() as sequencer:
            storage = _paused(query.storage, sequencer)
            sequencer.start("first", lambda: run.begin(0, 0, storage=storage))
            sequencer.run_until("first", "put_if_absent epochs/*")
            rival.begin(0)
            sequencer.start("second", lambda: run.begin(0, 1, storage=storage))
            sequencer.run_until("second", "put_if_absent epochs/*")
            _outcome(sequencer, "first")
            sequencer.finish("second")
        entries = list_epochs(query.storage).entries
        assert sorted(e.number for e in entries if e.run_key == run.key) == [1, 3]
        run.batch(0)
        assert run.opened(1) == expected("0a")
        with pytest.raises(FencedError):
            rival.begin(0).commit()


class TestSchedule04CheckpointGoesBack:
    def test_a_run_goes_back_with_another_parallelism(self, query, expected):
        query.run(2, data="a").batches(0, 7)
        back = query.run(3, data="b")
        back.batches(1, 2)
        assert back.opened(3) == expected("0a", "1b", "2b")

    def test_the_next_run_goes_on_from_it(self, query, expected):
        query.run(2, data="a").batches(0, 7)
        query.run(3, data="b").batches(1, 2)
        assert query.run(1, data="c").opened(3) == expected("0a", "1b", "2b")

    def test_a_reader_in_the_middle_sees_one_timeline(self, query, expected, toy_state):
        query.run(2, data="a").batches(0, 7)
        back = query.run(3, data="b")
        back.batch(1)
        half = back.begin(2, 1)
        half.commit()
        with open_version(query.storage, uid="op") as reader:
            assert reader.version == 2
            assert toy_state(query.storage, reader.parents) == expected("0a", "1b")
        with open_version(query.storage, uid="op", version=3) as reader:
            assert toy_state(query.storage, reader.parents) == expected("0a", "1a", "2a")

    def test_for_each_batch_that_skips_never_reaches_the_abandoned_timeline(self, query, expected):
        query.run(2, data="a").batches(0, 7)
        spark_run = str(uuid.uuid4())
        query.run(1, data="b", spark_run=spark_run).batch(1)
        query.run(1, data="b", spark_run=spark_run).batch(2)
        assert query.run(1, spark_run=spark_run).opened(6) == expected("0a", "1b", "2b")

    def test_two_timelines_that_could_both_be_meant_are_an_error(self, query, expected):
        """Either the later run skipped batches, or the old checkpoint was restored."""
        query.run(2, data="a").batches(0, 7)
        query.run(1, data="b").batches(1, 2)
        with pytest.raises(ConfigurationError, match=r"version 5, made before .* and version 3"):
            query.run().begin(5)
        assert query.run(2).opened(3) == expected("0a", "1b", "2b")


class TestSchedule05LateCommits:
    def test_a_lost_attempt_of_a_lower_id(self, query, expected):
        run = query.run(1)
        lost = run.begin(0)
        run.batch(0)
        before = run.begin(1).version.parents[0].manifest_id
        lost.commit()
        assert run.begin(1).version.parents[0].manifest_id == before
        assert run.opened(1) == expected(0)

    def test_a_repeated_stage_attempt_of_a_higher_id(self, query, expected):
        run = query.run(1)
        run.batch(0)
        run.batch(1)
        repeated = run.begin(0)
        identity = repeated.commit()
        again = run.begin(1)
        assert again.version.parents[0].manifest_id == identity
        assert again.state == expected(0)
        assert run.opened(2) == expected(0, 1)

    def test_an_older_run(self, query, expected):
        older = query.run(1, data="a")
        older.batch(0)
        late = older.begin(1).pass_the_fence()
        newer = query.run(1, data="b")
        newer.batch(1)
        late.commit()
        assert newer.opened(2) == expected("0a", "1b")
        assert query.run(1).opened(2) == expected("0a", "1b")

    def test_an_older_run_completes_what_a_newer_one_only_began(self, query, expected):
        older = query.run(1, data="a")
        older.batch(0)
        late = older.begin(1).pass_the_fence()
        query.run(1, data="b").begin(1)
        late.commit()
        assert query.run(1).opened(2) == expected("0a", "1a")


class TestSchedule06EmptyBatches:
    def test_a_skipped_version_equals_the_one_below(self, query, expected):
        run = query.run()
        run.batches(0, 1)
        assert run.opened(5) == expected(0, 1)
        assert query.run(3).opened(5) == expected(0, 1)

    def test_a_run_that_has_made_nothing_goes_on_from_its_origin(self, query, expected):
        query.run(data="a").batches(0, 1)
        run = query.run(3)
        died = FaultyStorage(query.storage, Fault(operation="put_if_absent", name="*/marker-*"))
        with pytest.raises(StorageError):
            run.begin(2, storage=died)
        assert run.opened(4) == expected("0a", "1a")

    def test_each_batch_of_for_each_batch_is_a_run(self, query, expected):
        spark_run = str(uuid.uuid4())
        for batch in (0, 1, 4):
            query.run(spark_run=spark_run).batch(batch)
        assert query.run(spark_run=spark_run).opened(5) == expected(0, 1, 4)


class TestSchedule07WhatStandsDownstream:
    def test_a_limit_is_found_in_the_next_batch(self, query):
        run = query.run(2)
        run.batch(0)
        run.begin(1, 0).commit()
        run.begin(1, 1)
        with pytest.raises(CorruptStateError, match=r"limit\(\), take\(\) or show\(\)"):
            run.begin(2)

    def test_a_limit_is_found_by_the_next_run_and_by_a_reader(self, query, expected, toy_state):
        run = query.run(2)
        run.batch(0)
        run.begin(1, 0).commit()
        with pytest.raises(CorruptStateError, match="remove commits/1 and everything newer"):
            query.run().begin(2)
        with pytest.raises(CorruptStateError, match=r"version 2 .*incomplete"):
            open_version(query.storage, uid="op", version=2)
        with open_version(query.storage, uid="op") as reader:
            assert toy_state(query.storage, reader.parents) == expected(0)

    def test_running_the_batch_again_recovers(self, query, expected):
        run = query.run(2, data="a")
        run.batch(0)
        run.begin(1, 0).commit()
        query.run(2, data="b").batch(1)
        assert query.run().opened(2) == expected("0a", "1b")

    def test_coalesce_runs_two_subtasks_in_one_attempt(self, query):
        run = query.run(2)
        run.begin(0, 0, attempt=7).commit()
        with pytest.raises(ConfigurationError, match=r"coalesce\(\) or a union\(\)"):
            run.begin(0, 0, attempt=7)

    @pytest.mark.parametrize("ran", [[0], [3], [0, 1], [2, 3], [0, 1, 2], [1, 2, 3]])
    def test_only_the_first_or_last_subtasks_ran(self, query, ran):
        """As take() and tail() do in every batch: other subtasks never run, and cannot check."""
        run = query.run(4)
        run.batch(0)
        for subtask in ran:
            run.begin(1, subtask).commit()
        with pytest.raises(CorruptStateError, match=r"limit\(\), take\(\) or show\(\)"):
            run.begin(2, 0 if 0 in ran else 3)

    def test_union_shifts_the_subtask(self, query):
        run = query.run(2)
        with pytest.raises(ConfigurationError, match=r"2 subtask.*ran as subtask 3.*union"):
            run.begin(0, 3, range=run.begin(0, 1).range)

    def test_two_actions_make_the_version_twice(self, query, expected):
        run = query.run(2)
        run.batch(0)
        run.batch(0)
        assert run.opened(1) == expected(0)


class TestSchedule08NothingStored:
    def test_a_mistyped_directory_is_an_error_and_nothing_is_written(self, query):
        with pytest.raises(ConfigurationError, match=r"'op'.*mistyped or renamed.*new_state=True"):
            query.run().begin(3)
        assert query.storage.list() == []

    def test_new_state_opens_empty(self, query, expected):
        run = query.run()
        for task in run.batch(3, new_state=True):
            assert (task.version.opened_version, task.version.is_restored) == (0, False)
        assert run.opened(4) == expected(3)

    def test_version_0_opens_empty(self, query):
        task = query.run().begin(0)
        assert (task.version.opened_version, task.version.parents) == (0, [])

    def test_new_state_does_not_hide_what_is_stored(self, query, expected):
        query.run().batches(0, 2)
        assert query.run().opened(3, new_state=True) == expected(0, 1, 2)

    def test_going_back_further_than_is_kept_says_so(self, query):
        query.run().batch(5, new_state=True)
        with pytest.raises(ConfigurationError, match="oldest stored version is 6"):
            query.run().begin(2)


class TestMissingVersions:
    """On a stream every batch makes a version; elsewhere a batch may skip the operator."""

    @pytest.fixture
    def lost(self, query):
        query.run().batches(0, 3)
        for made in query.storage.list(version_folder(4)):
            query.storage.delete([made.name])
        return query

    def test_a_stream_does_not_go_on_from_an_older_one(self, lost):
        before = lost.storage.list()
        says = r"version 4 of the state of operator 'op' .* is missing.*newest that is stored is 3"
        with pytest.raises(CorruptStateError, match=says):
            lost.run().begin(4, consecutive=True)
        assert lost.storage.list() == before

    def test_an_operator_that_comes_back_says_so(self, lost, expected):
        assert lost.run().opened(9, consecutive=True, new_state=True) == expected(0, 1, 2)

    def test_where_batches_may_skip_the_operator_the_newest_is_opened(self, lost, expected):
        assert lost.run().opened(4) == expected(0, 1, 2)

    def test_batches_that_run_again_find_theirs(self, lost, expected):
        lost.run(data="again").batch(3, consecutive=True)
        assert lost.run().opened(4, consecutive=True) == expected(0, 1, 2, "3again")


class TestSchedule09Rescale:
    def test_one_two_one_with_writes_in_between(self, query, expected):
        query.run(1, data="a").batches(0, 4)
        query.run(2, data="b").batches(5, 9)
        query.run(1, data="c").batches(10, 14)
        tokens = [f"{n}{'abc'[n // 5]}" for n in range(15)]
        assert query.run(3).opened(15) == expected(*tokens)

    def test_a_file_of_both_halves_never_hides_a_newer_value(self, query, expected):
        query.run(1, data="a").batch(0)
        query.run(2, data="b").batch(1)
        query.run(1, data="c").batch(2)
        query.run(2, data="d").batch(3)
        task = query.run(1).begin(4)
        assert task.state == expected("0a", "1b", "2c", "3d")
        assert [parent.whole for parent in task.version.parents] == [False, False]


class TestSchedule10Janitor:
    def test_a_losing_attempts_file_that_the_next_version_names(self, query, clock, expected):
        run = query.run(1)
        run.batch(0)
        loser = run.begin(1)
        loser.commit()
        opened_loser = run.begin(2)
        winner = run.begin(1)
        winner.commit()
        opened_loser.commit()
        run.batch(3)
        _sweep(query, run, clock, 4, retention=1)
        assert run.opened(4) == expected(0, 1, 2, 3)

    def test_rollback_keeps_the_abandoned_timeline_until_it_is_passed(self, query, clock):
        query.run(1, data="a").batches(0, 7)
        back = query.run(1, data="b")
        back.batches(1, 4)
        _sweep(query, back, clock, 5, retention=1)
        assert _versions(query) == {4, 5, 6, 7, 8}

    def test_a_file_whose_manifest_is_still_to_come(self, query, clock, expected):
        run = query.run(1)
        run.batches(0, 5)
        task = run.begin(6)
        written = task.write()
        _sweep(query, run, clock, 6, retention=1)
        task.commit(written)
        assert run.opened(7) == expected(*range(7))

    @pytest.mark.long
    def test_fast_triggers_and_a_slow_reader(self, query, clock, expected, toy_state):
        run = query.run(1)
        run.batches(0, 2)
        with open_version(query.storage, uid="op", lease=timedelta(days=1)) as reader:
            for batch in range(3, 30):
                run.batch(batch)
                _sweep(query, run, clock, batch + 1, retention=1, wait=timedelta(minutes=40))
            assert toy_state(query.storage, reader.parents) == expected(0, 1, 2)
        clock.advance(timedelta(hours=2))
        _sweep(query, run, clock, 30, retention=1)
        assert 3 not in _versions(query)

    def test_a_reader_that_pins_while_the_janitor_is_deciding(self, query, clock, toy_state):
        run = query.run(1)
        run.batches(0, 9)
        clock.advance(timedelta(hours=2))
        with Sequencer() as sequencer:
            storage = _paused(query.storage, sequencer)
            sequencer.start("janitor", lambda: _janitor(storage, run, 1).sweep(10))
            sequencer.run_until("janitor", "list data")
            with open_version(query.storage, uid="op", version=3) as reader:
                sequencer.finish("janitor")
                _sweep(query, run, clock, 10, retention=1, wait=timedelta(minutes=1))
                assert toy_state(query.storage, reader.parents)[0] == ("0", "1", "2")

    def test_a_janitor_that_was_asleep(self, query, clock, expected):
        older = query.run(1, data="a")
        older.batches(0, 9)
        clock.advance(timedelta(hours=2))
        with Sequencer() as sequencer:
            storage = _paused(query.storage, sequencer)
            sequencer.start("janitor", lambda: _janitor(storage, older, 1).sweep(10))
            sequencer.run_until("janitor", "list data")
            newer = query.run(1, data="b")
            newer.batch(3)
            assert sequencer.finish("janitor").overtaken
        assert _versions(query) == set(range(1, 11))
        assert newer.opened(4) == expected("0a", "1a", "2a", "3b")

    def test_a_fork_keeps_what_both_sides_name(self, query, clock, expected):
        query.run(1, data="a").batches(0, 3)
        left = query.run(2, data="b")
        left.batches(3, 4)
        right = query.run(1, data="c")
        right.batches(3, 8)
        _sweep(query, right, clock, 9, retention=2)
        _sweep(query, right, clock, 9, retention=2)
        assert right.opened(9) == expected("0a", "1a", "2a", *(f"{n}c" for n in range(3, 9)))

    @pytest.mark.long
    def test_every_retained_version_still_opens(self, query, clock, expected):
        run = query.run(2)
        run.batches(0, 29)
        _sweep(query, run, clock, 30, retention=5)
        _sweep(query, run, clock, 30, retention=5)
        for version in range(25, 31):
            assert query.run(3).opened(version) == expected(*range(version))


class TestSchedule14TornManifest:
    def test_a_torn_manifest_of_the_highest_attempt_beside_a_good_one(self, query, expected):
        run = query.run(1)
        good = run.begin(0)
        good.commit()
        torn = FaultyStorage(query.storage, Fault(name="*/manifest-*", kind=FaultKind.TORN))
        with pytest.raises(StorageError, match="injected"):
            run.begin(0, storage=torn).commit()
        assert run.opened(1) == expected(0)

    def test_alone_it_is_no_manifest(self, query):
        run = query.run(1)
        torn = FaultyStorage(query.storage, Fault(name="*/manifest-*", kind=FaultKind.TORN))
        with pytest.raises(StorageError, match="injected"):
            run.begin(0, storage=torn).commit()
        (left,) = [one.name for one in query.storage.list() if "/manifest-" in one.name]
        with pytest.raises(CorruptStateError, match=f"incomplete: truncated.* {left}. To recover"):
            run.begin(1)

    def test_an_altered_one_is_corrupt(self, query):
        run = query.run(1)
        run.batch(0)
        run.memory.forget()
        altered = FaultyStorage(query.storage, Fault(name="*/manifest-*", kind=FaultKind.ALTERED))
        with pytest.raises(CorruptStateError, match="altered"):
            run.begin(1, storage=altered)


def _paused(storage, sequencer):
    return FaultyStorage(storage, latency=lambda op, name: sequencer.at(f"{op} {name}"))


def _outcome(sequencer, name):
    try:
        sequencer.finish(name)
    except FencedError:
        return "fenced"
    return "begun"


def _janitor(storage, run, retention):
    return Janitor(storage, run_key=run.key, retention=retention, min_age=timedelta(hours=1))


def _sweep(query, run, clock, committed, *, retention, wait=timedelta(hours=2)):
    clock.advance(wait)
    return _janitor(query.storage, run, retention).sweep(committed)


def _versions(query):
    folders = query.storage.list_folders("versions")
    return {(1 << 48) - 1 - int(folder, 16) for folder in folders}
