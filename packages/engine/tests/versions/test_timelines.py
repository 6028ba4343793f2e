"""The choice of the checkpoint's timeline: copies, two drivers, undecidable cases."""

from __future__ import annotations

import itertools

import pytest

from forebay_engine.versions.choosing.heads import list_heads, recovery_for
from forebay_engine.versions.choosing.reader import open_version
from forebay_engine.versions.choosing.recovery import put_recovery, read_recovery
from forebay_engine.versions.format.checkpoint import Checkpoint
from forebay_engine.versions.format.epochs import list_epochs, read_record
from forebay_state_api.errors import ConfigurationError, CorruptStateError, FencedError

HOME, COPY = "file:/production/checkpoint", "file:/copy/checkpoint"

_clock = itertools.count(1_700_000_000_000, 1_000)


class Spark:
    """A checkpoint, and the query that runs from it, one batch after another."""

    def __init__(self, query, data, location=HOME, *, times=(), committed=0):
        self.query, self.data, self.location = query, data, location
        self.times, self.committed = dict(times), committed
        """Batch → its time; the number of committed batches."""
        self.run = None

    def copied(self, data, location=COPY):
        return Spark(self.query, data, location, times=self.times, committed=self.committed)

    def start(self, data=None, *, asked=True):
        """Start a new run, whose tasks know the checkpoint's current content."""
        self.run = self.query.run(2, data or self.data)
        said = Checkpoint(location=self.location, times_ms=dict(self.times))
        self.how = {"consecutive": True, "checkpoint": said if asked else None}
        return self

    def plan(self):
        return self.times.setdefault(self.committed, next(_clock))

    def begin(self, subtask, *, rows=True, **how):
        batch_ms = self.plan() if rows else 0
        return self.run.begin(self.committed, subtask, batch_ms=batch_ms, **self.how | how)

    def batch(self, *, fails=False, **how):
        """Run all tasks of the next batch; with ``fails``, Spark does not commit it."""
        self.plan()
        for subtask in range(2):
            self.begin(subtask, **how).commit()
        self.committed += not fails

    def batches(self, count, **how):
        for _ in range(count):
            self.batch(**how)

    def opened(self, **how):
        """Return the state that a new run opens."""
        self.start(**how)
        state = self.begin(0).state | self.begin(1).state
        assert len(set(state.values())) == 1, "all key groups have one history"
        return state[0]


@pytest.fixture
def home(query):
    """Production: batch 0 is committed."""
    spark = Spark(query, "p").start()
    spark.batch()
    return spark


def choose(query, index):
    """Choose one of the timelines, as ``forebay recover --choose`` does."""
    epochs = list_epochs(query.storage)
    head = list_heads(query.storage, epochs)[index]
    put_recovery(query.storage, epochs, recovery_for(head, query.storage, epochs))
    return head


def heads(query):
    return [head.version for head in list_heads(query.storage, list_epochs(query.storage))]


class TestCopies:
    @pytest.mark.parametrize("last", ["home", "copy"])
    def test_a_copy_and_its_original_each_go_on_with_their_own(self, home, last):
        copy = home.copied("c")
        runs = {"home": home, "copy": copy}
        for name in sorted(runs, key=lambda name: name == last):
            runs[name].start().batch()
        assert home.opened() == ("0p", "1p")
        assert copy.opened() == ("0p", "1c")
        home.start().batch()
        copy.start().batch()
        assert home.opened() == ("0p", "1p", "2p")
        assert copy.opened() == ("0p", "1c", "2c")

    @pytest.mark.parametrize("parallelism", [1, 3])
    def test_after_a_rescale_too(self, home, parallelism):
        copy = home.copied("c")
        home.start().batch()
        copy.start().batch()
        home.start()
        home.run.parallelism = parallelism
        batch_ms = home.plan()
        home.run.batch(2, batch_ms=batch_ms, **home.how)
        home.committed += 1
        assert home.opened() == ("0p", "1p", "2p")

    @pytest.mark.parametrize("last", ["home", "copy"])
    def test_a_copy_of_a_failed_query_repeats_a_batch_with_its_time(self, home, last):
        home.start().batch(fails=True)
        copy = home.copied("c")
        runs = {"home": home, "copy": copy}
        for name in sorted(runs, key=lambda name: name == last):
            runs[name].start(f"fixed-{name}").batch()
        assert home.times[1] == copy.times[1]
        assert home.opened() == ("0p", "1fixed-home")
        assert copy.opened() == ("0p", "1fixed-copy")

    def test_a_copy_of_a_running_query(self, home):
        """The batch is open in the original when the copy is made; both commit it."""
        home.start()
        tasks = [home.begin(subtask).pass_the_fence() for subtask in range(2)]
        copy = home.copied("c").start()
        copy.batch()
        for task in tasks:
            task.commit()
        home.committed += 1
        assert home.opened() == ("0p", "1p")
        assert copy.opened() == ("0p", "1c")

    def test_a_moved_checkpoint_goes_on(self, home):
        home.start().batch(fails=True)
        home.start("again").batch()
        home.location = "file:/moved"
        assert home.opened() == ("0p", "1again")

    def test_a_third_copy_of_an_open_batch_cannot_be_told_from_the_others(self, home, query):
        home.start().batch(fails=True)
        copy, third = home.copied("c"), home.copied("t", "file:/third")
        home.start().batch()
        copy.start().batch()
        third.committed += 1
        before = query.storage.list()
        with pytest.raises(ConfigurationError, match="forebay recover") as caught:
            third.opened()
        for spark in (home, copy):
            assert spark.location in str(caught.value)
            assert spark.run.key in str(caught.value)
        assert query.storage.list() == before
        chosen = choose(query, 0)
        assert chosen.run_key == copy.run.key
        assert third.opened() == ("0p", "1c")

    def test_where_only_the_copy_is_stored_nothing_is_taken_for_ones_own(self, home, query):
        copy = home.copied("c")
        home.start().batch()
        copy.start().batch()
        for info in query.storage.list("versions"):
            if home.run.key in info.name:
                query.storage.delete([info.name])
        with pytest.raises(ConfigurationError, match="another checkpoint than file:/production"):
            home.opened()
        assert copy.opened() == ("0p", "1c")
        choose(query, 0)
        assert home.opened() == ("0p", "1c"), "somebody has decided so"

    def test_an_older_version_is_not_taken_for_a_missing_one_of_a_copy(self, home, query):
        """foreachBatch may skip the operator: then the newest known version is opened."""
        copy = home.copied("c")
        copy.start().batch()
        home.start()
        home.plan()
        home.committed += 1
        home.how["consecutive"] = False
        home.start()
        home.how["consecutive"] = False
        assert home.begin(0).state[0] == ("0p",)


class TestBatchesWithoutRows:
    def test_the_newest_version_that_has_a_time_is_asked(self, home):
        copy = home.copied("c")
        home.start().batch()
        copy.start().batch()
        for spark in (home, copy):
            spark.start()
            spark.batches(2, rows=False)
        assert home.opened() == ("0p", "1p", "2p", "3p")
        assert copy.opened() == ("0p", "1c", "2c", "3c")

    def test_one_subtask_with_rows_is_enough(self, home):
        copy = home.copied("c")
        for spark in (home, copy):
            spark.start().plan()
            for subtask in range(2):
                spark.begin(subtask, rows=subtask == 1).commit()
            spark.committed += 1
        assert home.opened() == ("0p", "1p")

    def test_without_any_time_the_rank_decides(self, query):
        home = Spark(query, "p").start()
        home.batches(2, rows=False)
        home.start("again")
        home.batch(rows=False)
        assert home.opened() == ("0p", "1p", "2again")

    def test_without_any_time_two_timelines_are_an_error(self, query):
        home = Spark(query, "p").start()
        home.batch(rows=False)
        back = home.copied("b", HOME)
        home.batches(3, rows=False)
        back.start().batch(rows=False)
        with pytest.raises(
            ConfigurationError, match=r"could go on from version 4.*forebay recover"
        ):
            home.opened()
        choose(query, 1)
        assert home.opened() == ("0p", "1p", "2p", "3p")


class TestGoingBack:
    """The documented recipes delete commits and offsets; Spark repeats batches still planned."""

    @pytest.mark.parametrize("planned", ["kept", "deleted"])
    @pytest.mark.parametrize("batch", [1, 2, 3])
    def test_the_newer_timeline_goes_on(self, home, planned, batch):
        home.start().batches(3)
        times = {n: at for n, at in home.times.items() if planned == "kept" or n < batch}
        back = Spark(home.query, "b", times=times, committed=batch)
        expected = ("0p", "1p", "2p", "3p")[:batch]
        assert back.opened() == expected
        back.batch()
        assert back.opened() == (*expected, f"{batch}b")

    def test_the_checkpoint_that_is_put_back_finds_its_timeline(self, home):
        """With numbers alone this was an error."""
        home.start().batches(4)
        back = Spark(home.query, "b", times={0: home.times[0]}, committed=1)
        back.start().batches(2)
        assert home.opened() == ("0p", "1p", "2p", "3p", "4p")
        assert back.opened() == ("0p", "1b", "2b")

    def test_times_that_are_gone_decide_nothing(self, home):
        home.start().batches(2)
        home.times.clear()
        assert home.opened() == ("0p", "1p", "2p")

    def test_where_the_checkpoint_cannot_be_asked_the_rank_decides(self, home):
        copy = home.copied("c")
        home.start().batch()
        copy.start().batch()
        assert home.opened(asked=False) == ("0p", "1c")


class TestTwoDrivers:
    """The newer driver starts at some point of a batch of the older one, on one checkpoint."""

    POINTS = range(6)

    @pytest.mark.parametrize("looked", [False, True], ids=["looks later", "has looked"])
    @pytest.mark.parametrize("runs", ["newer first", "older first"])
    @pytest.mark.parametrize("read", [0, 1])
    @pytest.mark.parametrize("point", POINTS)
    def test_a_restart_goes_on(self, home, point, read, runs, looked):
        """``read`` is how many batches ago the newer driver read the checkpoint."""
        older = home.start()
        older.batch()
        newer = older.copied("n", HOME)
        older.batches(read)
        steps = self.steps_of(older, looked=looked)
        taken = list(itertools.islice(steps, point))
        newer.start()
        rest = [(newer, self.steps_of(newer, looked=False)), (older, steps)]
        if runs == "older first":
            next(rest[0][1])  # its first task has begun, so its epoch exists
            rest.reverse()
        for spark, left in rest:
            self.drive(spark, left)
        committed = self.commits(older, newer)
        after = Spark(home.query, "r", times=older.times | newer.times, committed=committed)
        found = after.opened()
        assert [int(token[:-1]) for token in found] == list(range(committed)), (found, taken)
        after.batch()
        assert after.opened() == (*found, f"{committed}r")

    def steps_of(self, spark, *, looked):
        """Run one batch, step by step; Spark commits it at the end."""
        tasks = []
        for subtask in range(2):
            task = spark.begin(subtask)
            tasks.append(task.pass_the_fence() if looked else task)
            yield "begun"
        for task in tasks:
            task.commit()
            yield "committed"
        spark.committed += 1
        yield "batch committed"

    def drive(self, spark, steps):
        try:
            for _ in steps:
                pass
        except FencedError:
            spark.run = None

    def commits(self, older, newer):
        """Spark lets one of two drivers commit a batch; the other one fails."""
        newer.committed = max(older.committed, newer.committed)
        return newer.committed


class TestRecovery:
    @pytest.fixture
    def split(self, query):
        """Two timelines that no checkpoint distinguishes, of versions 2 and 4."""
        home = Spark(query, "p").start(asked=False)
        home.batch()
        back = home.copied("b", HOME)
        home.batches(3)
        back.start(asked=False).batch()
        return home, back

    def test_the_timelines_are_found(self, query, split):
        home, back = split
        found = list_heads(query.storage, list_epochs(query.storage))
        assert [(head.run_key, head.version) for head in found] == [
            (back.run.key, 2),
            (home.run.key, 4),
        ]
        assert found[0].chain == {back.run.key: 2, home.run.key: 1}

    def test_a_restart_and_a_repeated_batch_make_no_timeline(self, query, home):
        home.start().batch()
        home.start("x").batch(fails=True)
        home.start("y").batch()
        assert heads(query) == [3]

    @pytest.mark.parametrize(("index", "expected"), [(0, "0p 1b"), (1, "0p 1p 2p 3p")])
    def test_a_choice_lasts_over_restarts_and_is_what_readers_see(
        self, query, split, toy_state, index, expected
    ):
        spark = split[1 - index]
        head = choose(query, index)
        for number in range(3):
            assert " ".join(spark.opened(asked=False)) == expected
            with open_version(query.storage, uid="op") as reader:
                assert reader.version == head.version + number
                assert " ".join(toy_state(query.storage, reader.parents)[0]) == expected
            spark.batch()
            expected += f" {spark.committed - 1}{spark.data}"

    def test_the_next_choice_replaces_it(self, query, split):
        home, back = split
        choose(query, 0)
        assert back.opened(asked=False) == ("0p", "1b")
        choose(query, 1)
        assert home.opened(asked=False) == ("0p", "1p", "2p", "3p")

    def test_what_was_left_behind_is_missing_where_the_checkpoint_is_on_it(self, query, split):
        home, _ = split
        choose(query, 0)
        with pytest.raises(CorruptStateError, match=r"version 4 .* is missing"):
            home.opened(asked=False)

    def test_going_back_afterwards_begins_a_timeline_like_any_other(self, query, split):
        home, _ = split
        choose(query, 1)
        again = Spark(query, "g", times=home.times, committed=2)
        again.start(asked=False).batch()
        assert again.opened(asked=False) == ("0p", "1p", "2g")

    def test_two_at_once_do_not_both_decide(self, query, split):
        epochs = list_epochs(query.storage)
        first, second = (
            recovery_for(head, query.storage, epochs) for head in list_heads(query.storage, epochs)
        )
        put_recovery(query.storage, epochs, first)
        with pytest.raises(ConfigurationError, match="just chosen a timeline"):
            put_recovery(query.storage, epochs, second)
        assert read_recovery(query.storage, list_epochs(query.storage)) == first

    def test_where_a_run_began_is_kept_with_it(self, query, home):
        assert read_record(query.storage, home.run.key).location == HOME


def test_what_the_checkpoint_says_travels_as_text():
    said = Checkpoint(location="s3://b/ü", times_ms={3: 5, 2: 4})
    assert Checkpoint.parse(said.text()) == said
    assert (said.time_of(4), said.time_of(9)) == (5, None)
