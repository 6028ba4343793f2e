"""Answers of a wait that are kept: found by the row, in every kind of wait, and cleaned."""

from __future__ import annotations

import random
import uuid
from typing import NamedTuple

import pytest

from forebay_engine.journal.call_journal import PartitionJournal
from forebay_engine.versions.format.layout import AnswersName
from forebay_spark_runtime.waiting.keeping import RowAnswers, held_back
from forebay_state_api.calls.policies import Batch, Rate, Retry
from forebay_state_api.errors import ConfigurationError, FunctionError
from forebay_state_api.metrics.calls import CallMetrics
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing.storage import CountingStorage, Fault, FaultyStorage

RUN, LATER_RUN = "00000000000000aa", "0000000000000001"


class Row(NamedTuple):
    text: str


class Service:
    """Answers a second after each call with its number, and fails from some call on."""

    def __init__(self, fails_from=10**9):
        self.asked = []
        self.fails_from = fails_from

    async def __call__(self, row, client):
        if isinstance(row, list):
            return [await self(one, client) for one in row]
        if len(self.asked) >= self.fails_from:
            raise ConnectionError(row.text)
        self.asked.append(row.text)
        return {"text": row.text, "number": len(self.asked)}


@pytest.fixture
def storage():
    return CountingStorage(MemoryStorage(f"memory://{uuid.uuid4()}"))


@pytest.fixture
def run(drive, storage):
    """Return a function that runs one attempt of a task; its answers are stored at the end."""
    attempts = iter(range(1_000))

    def attempt(service, rows, *, crash=False, batch=None, engine=None, **place):
        journal = journal_of(storage, attempt_id=next(attempts), **place)
        answers = RowAnswers("score", journal, "asks")
        driven = drive(
            service, rows, engine={"answers": answers}, **{} if batch is None else {"batch": batch}
        )
        if not crash:
            answers.finish()
        answers.close(driven.counts)
        return driven

    return attempt


def journal_of(
    storage,
    *,
    attempt_id=0,
    batch_id=0,
    batch_ms=7,
    partition=0,
    run_key=RUN,
    use=True,
    is_first=True,
):
    return PartitionJournal(
        storage,
        version=batch_id + 1,
        batch_ms=batch_ms,
        use=use,
        partition=partition,
        run_key=run_key,
        attempt_id=attempt_id,
        is_first=is_first,
    )


def rows(count=30, different=20):
    return [Row(f"t{number % different}") for number in range(count)]


def objects(storage):
    return [AnswersName.parse(info.name) for info in storage.list("data")]


def check_answers(given, driven, service):
    """Check that every row has an answer to its own question, and each answer is used once."""
    assert sorted(one["text"] for one in driven.out) == sorted(row.text for row in given)
    assert all(service.asked[one["number"] - 1] == one["text"] for one in driven.out)
    assert len({one["number"] for one in driven.out}) == len(given)


KINDS = {
    "bare": {},
    "unordered": {"ordered": False},
    "retries": {"retry": Retry(1), "timeout": 100.0},
    "key": {"keys": lambda row: row.text},
    "batch": {"batch": Batch(4)},
    "batch within": {"batch": Batch(4, within=5)},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_repetition_makes_the_missing_calls_alone(drive, storage, kind):
    options = KINDS[kind]
    service = Service()

    def attempt(given, number):
        answers = RowAnswers("score", journal_of(storage, attempt_id=number), "asks")
        driven = drive(service, given, engine={"answers": answers}, capacity=3, **options)
        answers.finish()
        answers.close(driven.counts)
        return driven

    given = rows()
    if kind != "retries":  # whose errors are tried again
        service.fails_from = 12  # three calls of four
        assert isinstance(attempt(given, 1).error, FunctionError)
    service.fails_from = 10**9
    random.Random(3).shuffle(given)
    second = attempt(given, 2)
    check_answers(given, second, service)
    made = len(service.asked)
    assert made == len(given)
    third = attempt(given, 3)
    check_answers(given, third, service)
    assert len(service.asked) == made
    assert (third.counts.answered, third.counts.tries) == (len(given), 0)
    if options.get("ordered", True):
        texts = [one["text"] for one in third.out]
        assert texts == [row.text for row in given]


def test_hits_take_no_turn_of_the_rate_and_share_no_call(drive, storage, run):
    service = Service()
    run(service, rows(20))
    answers = RowAnswers("score", journal_of(storage, attempt_id=9), "asks")
    driven = drive(service, rows(20), engine={"answers": answers}, rate=Rate(1, per=3_600))
    assert (driven.took_s, len(service.asked)) == (0, 20)
    sizes = []

    async def together(some, client):
        sizes.append(len(some))
        return await service(some, client)

    run(together, rows(30, different=30), batch=Batch(4))
    assert sizes == [4, 4, 2]


def test_what_on_error_answers_is_not_kept(drive, storage, failed):
    service = Service(fails_from=0)
    for number, batch in enumerate((None, Batch(2))):
        answers = RowAnswers("score", journal_of(storage, attempt_id=number), "asks")
        driven = drive(service, rows(3), engine={"answers": answers}, batch=batch, on_error=failed)
        answers.finish()
        assert [one[1] for one in driven.out] == ["ConnectionError"] * 3
    assert objects(storage) == []


def test_rows_that_moved_to_another_partition_find_their_answers(storage, run):
    service, given = Service(), rows(20)
    run(service, given[:10], partition=0)
    run(service, given[10:], partition=1)
    # A shuffle deals the rows again, in a later run with one partition more.
    random.Random(1).shuffle(given)
    for partition in range(3):
        run(service, given[partition::3], partition=partition, run_key=LATER_RUN)
    assert len(service.asked) == 20
    assert {one.epoch for one in objects(storage)} == {1}


def test_a_first_attempt_reads_nothing_of_the_other_tasks_of_its_run(storage, run):
    service = Service()
    run(service, rows(5), partition=0)
    storage.reset()
    run(service, rows(5, different=4), partition=1)
    assert [kind for kind, _ in storage.requests] == ["list", "put"]
    storage.reset()
    run(service, [Row("t0"), Row("new")], partition=2, is_first=False)
    assert [kind for kind, _ in storage.requests] == ["list", "get", "get", "put"]


def test_a_later_run_is_newer_whatever_its_attempts(storage, run):
    service = Service()
    run(service, rows(3))
    run(service, rows(5), run_key=LATER_RUN, batch_ms=7)
    assert sorted((one.run_key, one.epoch) for one in objects(storage)) == [
        (LATER_RUN, 2),
        (RUN, 1),
    ]


def test_the_next_batch_deletes_what_is_kept_and_finds_none_of_it(storage, run):
    service = Service()
    for partition in (0, 1, 5):
        run(service, rows(3), partition=partition)
    run(service, rows(3), batch_id=1, batch_ms=8)
    assert len(service.asked) == 12
    assert sorted((one.version, one.range.start) for one in objects(storage)) == [
        (1, 1),
        (1, 5),
        (2, 0),
    ]
    # Partitions that are gone are cleaned by the first one, a batch later.
    run(service, rows(3), batch_id=2, batch_ms=9)
    assert {(one.version, one.range.start) for one in objects(storage)} == {(3, 0)}


def test_partitions_that_one_task_runs_do_not_overwrite_each_other(storage, drive):
    """A coalesce runs them with one attempt id, and a union may give them one number."""
    service = Service()
    for given in (rows(5)[:2], rows(5)[2:]):
        answers = RowAnswers("score", journal_of(storage, attempt_id=1), "asks")
        drive(service, given, engine={"answers": answers})
        answers.finish()
    answers = RowAnswers("score", journal_of(storage, attempt_id=2), "asks")
    drive(service, rows(5), engine={"answers": answers})
    assert len(service.asked) == 5


def test_a_run_that_was_overtaken_keeps_its_rank(storage, run):
    run(Service(), rows(1))
    run(Service(), rows(2), run_key=LATER_RUN)
    run(Service(), rows(3), partition=1)
    found = {(one.run_key, one.range.start): one.epoch for one in objects(storage)}
    assert found == {(RUN, 0): 1, (LATER_RUN, 0): 2, (RUN, 1): 1}


def test_what_cannot_be_deleted_is_left_and_logged(drive, storage, run, caplog):
    run(Service(), rows(1))
    faulty = FaultyStorage(storage, Fault(operation="delete", count=None))
    answers = RowAnswers("score", journal_of(faulty, batch_id=1), "asks")
    driven = drive(Service(), rows(1), engine={"answers": answers})
    answers.close(driven.counts)
    assert driven.error is None
    assert "answers of earlier micro-batches were not deleted" in caplog.text


def test_a_batch_of_another_time_finds_nothing(run):
    service = Service()
    run(service, rows(3))
    run(service, rows(3), batch_ms=8)
    assert len(service.asked) == 6


def test_what_is_kept_is_ignored_on_demand(run):
    service = Service()
    run(service, rows(3))
    driven = run(service, rows(3), use=False)
    assert len(service.asked) == 6
    assert driven.counts.answered == 0
    run(service, rows(3))
    assert len(service.asked) == 6


def test_a_row_without_stable_bytes_is_refused_with_the_cure(run):
    class Point:
        pass

    driven = run(Service(), [(1, Point())])
    assert isinstance(driven.error, ConfigurationError)
    assert "leave columns out of what the function gets with columns=" in str(driven.error)


@pytest.mark.parametrize("batch", [None, Batch(2)])
def test_an_answer_that_cannot_be_kept_is_an_error(run, batch):
    async def answers_objects(row, client):
        return [object()] * len(row) if batch else object()

    driven = run(answers_objects, rows(3), batch=batch)
    assert isinstance(driven.error, FunctionError)
    assert "asks: keep_answers='score': the answer <object" in str(driven.error)


def test_answers_are_stored_before_the_last_output():
    done = []
    batches = held_back(iter("abc"), lambda: done.append(True))
    seen = [(batch, bool(done)) for batch in batches]
    assert seen == [("a", False), ("b", False), ("c", True)]
    assert [*held_back(iter(()), lambda: done.append(True))] == []
    assert len(done) == 2


def test_figures_say_what_was_kept(run):
    counts = run(Service(), rows(3)).counts
    assert isinstance(counts, CallMetrics)
    assert (counts.tries, counts.answered, counts.dropped) == (3, 0, 0)
    assert counts.kept_bytes > 0
