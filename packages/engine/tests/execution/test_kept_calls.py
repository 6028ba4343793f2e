"""``ctx.kept_call``: a repeated micro-batch gets answers back instead of making calls again."""

from __future__ import annotations

import asyncio
import random
import uuid
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from forebay_backend_heap import HeapBackend
from forebay_engine.journal import call_journal, writer
from forebay_engine.versions import Checkpoint
from forebay_engine.versions.cleaning.janitor import Janitor
from forebay_engine.versions.format.layout import AnswersName
from forebay_state_api import (
    Calls,
    FunctionError,
    KeyedProcessFunction,
    Rate,
    Retry,
    StorageError,
    ValueStateDescriptor,
)
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing import FunctionHarness, VirtualClock
from forebay_testing.job import KeyedJob
from forebay_testing.storage import CountingStorage, Fault, FaultyStorage

pytestmark = pytest.mark.long

N = ValueStateDescriptor("n", int, default=0)
ROWS = [{"k": f"k{number}", "text": f"t{number % 5}"} for number in range(20)]


class Service:
    """Answers each call with another number, after a random time; fails when it is asked to."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.asked: list[str] = []

    async def __call__(self, text: str) -> dict[str, Any]:
        self.asked.append(text)
        number = len(self.asked)
        await asyncio.sleep(self.random.random())
        return {"text": text, "number": number}


class Fails:
    """Decides whether the function's last record fails."""

    now = True


def asking(service: Service, calls: Calls | None = None) -> Any:
    class Asks(KeyedProcessFunction[Any, Any, Any]):
        def open(self, context: Any) -> None:
            self.n = context.get_state(N)

        async def process_element(self, row: Any, ctx: Any) -> Any:
            answer = await ctx.kept_call("ask", service, row["text"])
            await self.n.async_update(await self.n.async_value() + 1)
            if row["k"] == "last" and Fails.now:
                await asyncio.sleep(2)  # every other call is done
                raise ValueError("the last record")
            yield row["k"], answer["text"], answer["number"]

    if calls is not None:
        Asks.calls = calls
    return Asks()


def harness(make: Any, **options: Any) -> FunctionHarness:
    """A harness whose subtasks have what ``make`` returns: it is not copied."""
    running = FunctionHarness(make(), "k", **{"clock": VirtualClock(), **options})
    running._job._fresh = lambda _: make()
    return running


def fail(running: FunctionHarness, rows: Any) -> None:
    Fails.now = True
    with pytest.raises(FunctionError, match="the last record"):
        running.process([*rows, {"k": "last", "text": "last"}])
    Fails.now = False


def figures(running: FunctionHarness, key: str) -> float:
    return sum(report.figures.get(key, 0) for report in running._job.reports)


@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_a_repeated_batch_makes_no_call_again_and_returns_the_same_rows(backend: str) -> None:
    service = Service()
    with harness(lambda: asking(service), backend=backend) as running:
        fail(running, ROWS)
        made = len(service.asked)
        again = running.process([*ROWS, {"k": "last", "text": "last"}])
        assert len(service.asked) == made == 21
        assert sorted(number for _, _, number in again) == [*range(1, 22)]
        assert {(k, t) for k, t, _ in again} == {(r["k"], r["text"]) for r in ROWS} | {
            ("last", "last")
        }
        assert running.state(N, "k1") == 1
        assert (figures(running, "call_answered"), figures(running, "call_tries")) == (21, 0)
        # The next micro-batch is another one.
        running.process(ROWS)
        assert len(service.asked) == made + 20
        assert figures(running, "call_answered") == 0
        assert figures(running, "call_kept_bytes") > 0


def test_rows_in_another_order_get_their_own_answers() -> None:
    service = Service()
    with harness(lambda: asking(service)) as running:
        fail(running, ROWS)
        kept = dict(enumerate(service.asked, 1))
        rows = [*ROWS, {"k": "last", "text": "last"}]
        random.Random(1).shuffle(rows)
        for _, text, number in running.process(rows):
            assert kept[number] == text
    assert len(service.asked) == 21


@pytest.mark.parametrize("seed", range(10))
def test_gathered_children_get_their_own_answers(seed: int) -> None:
    service = Service(seed)

    async def child(ctx: Any, name: str) -> list[Any]:
        first = await ctx.kept_call("ask", service, f"{name}.first")
        second = await ctx.kept_call("ask", service, f"{name}.second")
        return [first["text"], second["text"], first["number"], second["number"]]

    async def both(row: Any, ctx: Any) -> Any:
        found = await asyncio.gather(child(ctx, "a"), child(ctx, "b"))
        if Fails.now:
            raise ValueError("the last record")
        return [(row["k"], found)]

    with harness(lambda: both) as running:
        fail(running, [])
        ((_, found),) = running.process([{"k": "last"}])
    assert [one[:2] for one in found] == [["a.first", "a.second"], ["b.first", "b.second"]]
    numbers = {text: n for one in found for text, n in zip(one[:2], one[2:], strict=True)}
    assert {text: service.asked[n - 1] for text, n in numbers.items()} == {t: t for t in numbers}
    assert len(service.asked) == 4


def test_equal_calls_of_a_record_have_an_answer_each() -> None:
    service, attempts = Service(), []

    async def many(row: Any, ctx: Any) -> Any:
        calls = [ctx.kept_call("ask", service, "same") for _ in range(3)]
        attempts.append([one["number"] for one in await asyncio.gather(*calls)])
        if Fails.now:
            raise ValueError("the last record")
        return [(row["k"], attempts[-1])]

    with harness(lambda: many) as running:
        fail(running, [])
        running.process([{"k": "last"}])
    first, again = attempts
    assert first == again
    assert sorted(first) == [1, 2, 3]
    assert len(service.asked) == 3


def test_hits_take_no_place_no_turn_and_no_time() -> None:
    service = Service()
    calls = Calls(rate=Rate(1, per=3_600, burst=1))
    clock = VirtualClock()
    with harness(lambda: asking(service, calls), clock=clock, calls_in_flight=1) as running:
        fail(running, ROWS[:3])
        before = clock.now_us
        running.process([*ROWS[:3], {"k": "last", "text": "last"}])
        assert clock.now_us == before
        assert figures(running, "calls_in_flight_max") == figures(running, "call_seconds_inf") == 0


def test_what_on_result_refuses_is_not_kept() -> None:
    service = Service()
    retry = Retry(5, on_result=lambda answer: answer["number"] < 3, delay=1)

    with harness(lambda: asking(service, Calls(timeout=100, retry=retry))) as running:
        fail(running, [])
        assert running.process([{"k": "last", "text": "last"}]) == [("last", "last", 3)]
    assert len(service.asked) == 3


def test_a_poisonous_answer_is_ignored_by_the_setting(monkeypatch: Any) -> None:
    service = Service()
    with harness(lambda: asking(service)) as running:
        fail(running, [])
        subtask = running._job.subtask
        monkeypatch.setattr(running._job, "subtask", lambda *a, **k: _ignoring(subtask(*a, **k)))
        assert running.process([{"k": "last", "text": "last"}]) == [("last", "last", 2)]
        assert figures(running, "call_answered") == 0


def _ignoring(subtask: Any) -> Any:
    subtask._call_journal._use = False
    return subtask


def test_timers_have_kept_calls() -> None:
    service = Service()

    class Timed(KeyedProcessFunction[Any, Any, Any]):
        def process_element(self, row: Any, ctx: Any) -> Any:
            ctx.timers.register_processing_time(ctx.timers.processing_time + timedelta(seconds=1))
            return []

        async def on_timer(self, at: Any, ctx: Any) -> Any:
            answer = await ctx.kept_call("ask", service, ctx.current_key)
            if ctx.current_key == "last" and Fails.now:
                await asyncio.sleep(2)
                raise ValueError("the last record")
            yield ctx.current_key, answer["number"]

    with harness(Timed) as running:
        running.process([{"k": "last"}, {"k": "a"}])
        running.clock.advance(timedelta(seconds=2))
        fail(running, [])
        again = running.process([])
    assert sorted(again) == sorted((key, number) for number, key in enumerate(service.asked, 1))
    assert len(again) == 2


def said(call: Any) -> str:
    """Return the error of a function that makes ``call(ctx)``."""

    async def body(row: Any, ctx: Any) -> Any:
        await call(ctx)
        return []

    with harness(lambda: body) as running, pytest.raises(FunctionError) as raised:
        running.process([{"k": "a"}])
    return str(raised.value)


async def _echo(value: Any) -> Any:
    return value


def test_what_cannot_be_named_or_kept_is_refused_with_the_cure() -> None:
    text = "question"
    assert "no stable bytes" in said(lambda ctx: ctx.kept_call("ask", _echo, {text}))
    assert "uses 'text'" in said(lambda ctx: ctx.kept_call("ask", lambda: _echo(text)))
    assert "the answer <object" in said(lambda ctx: ctx.kept_call("ask", _object))
    assert "takes a name of your own first" in said(lambda ctx: ctx.kept_call(_echo, 1))
    assert "Write ctx.kept_call('ask', fn, x), not" in said(
        lambda ctx: ctx.kept_call("ask", _echo(1))
    )


async def _object() -> Any:
    return object()


def test_a_call_that_was_not_awaited_is_named() -> None:
    async def body(row: Any, ctx: Any) -> Any:
        ctx.kept_call("ask", _echo, 1)
        return []

    with harness(lambda: body) as running, pytest.raises(FunctionError) as raised:
        running.process([{"k": "a"}])
    assert "ctx.kept_call('ask', <function _echo" in str(raised.value)
    assert "was not awaited, and so was not made" in str(raised.value)


def test_an_answer_that_is_too_large_is_made_again_and_said_once(
    monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setattr(call_journal, "MOST_ANSWER_BYTES", 10)
    service = Service()
    with harness(lambda: asking(service)) as running:
        fail(running, ROWS[:3])
        running.process(ROWS[:3])
    assert len(service.asked) == 4 + 3
    said = [record for record in caplog.records if "at most 10 are" in record.message]
    assert len(said) == 2  # once in each attempt


@pytest.mark.parametrize("on_error", ["fail", "column"])
def test_a_list_that_fails_fails_the_batch_instead_of_calls_made_twice(on_error: str) -> None:
    """It does so if the function catches the error, and if records fail alone."""
    service = Service()

    async def catches(row: Any, ctx: Any) -> Any:
        try:
            answer = await ctx.kept_call("ask", service, row["text"])
        except Exception:  # noqa: BLE001 - as functions do
            answer = await service(row["text"])
        return [(row["k"], answer["number"])]

    rows = [{"k": "last", "text": "last"}]
    with harness(lambda: catches, on_error=on_error) as running:
        root = running._job._root
        running._job._root = FaultyStorage(root, Fault(operation="list", name="*/calls"))
        with pytest.raises(StorageError, match="injected"):
            running.process(rows)
        running._job._root = root
        made = len(service.asked)
        assert running.process(rows) == [("last", made + 1)]


def test_an_attempt_that_is_cancelled_leaves_the_list_to_the_others() -> None:
    service = Service()

    async def body(row: Any, ctx: Any) -> Any:
        first = asyncio.ensure_future(ctx.kept_call("ask", service, "a"))
        second = asyncio.ensure_future(ctx.kept_call("ask", service, "b"))
        await asyncio.sleep(0)
        first.cancel()
        return [(row["k"], (await second)["text"])]

    with harness(lambda: body) as running:
        assert running.process([{"k": "a"}]) == [("a", "b")]


# -- objects and requests -------------------------------------------------------------------------


class Row(NamedTuple):
    key: str
    text: str = "text"


class Job:
    """A job that runs like a stream, whose calls are counted."""

    def __init__(self) -> None:
        self.service = Service()
        self.storage = CountingStorage(MemoryStorage(f"memory://{uuid.uuid4()}"))
        self.job = KeyedJob(HeapBackend, self.storage, fresh=lambda fn: fn)

    async def _ask(self, row: Any, ctx: Any) -> Any:
        answer = await ctx.kept_call("ask", self._echo, row.text)
        return [(row.key, answer)]

    async def _echo(self, text: str) -> str:
        self.service.asked.append(text)
        return text

    def run(self, *keys: str, **options: Any) -> Any:
        return self.job.run(self._ask, [Row(key) for key in keys], **options)

    def kinds(self, *keys: str, **options: Any) -> list[str]:
        self.storage.reset()
        self.run(*keys, **options)
        return [f"{kind} {_what(name)}" for kind, name in self.storage.requests]

    @property
    def objects(self) -> list[AnswersName]:
        prefix = f"{self.job.operator}/"
        names = [info.name.removeprefix(prefix) for info in self.storage.list("")]
        return [one for one in map(AnswersName.parse, names) if one is not None]


def _what(name: str) -> str:
    kinds = ("calls", "manifest", "marker", "epochs", "runs", "versions", "data")
    return next((kind for kind in kinds if kind in name), name)


def test_one_more_list_and_one_more_put_before_the_manifest() -> None:
    plain, keeping = Job(), Job()

    async def echo(row: Any, ctx: Any) -> Any:
        return [(row.key, await ctx.call(plain._echo, row.text))]

    plain._ask = echo  # type: ignore[method-assign]
    without = [plain.kinds("a", "b") for _ in range(3)][-1]
    found = [keeping.kinds("a", "b") for _ in range(3)][-1]
    assert sorted(found) == sorted([*without, "list calls", "put calls"])
    assert found.index("put calls") < found.index("put manifest")


def test_an_operator_that_has_kept_answers_lists_them_before_its_first_call() -> None:
    job = Job()
    assert "list calls" not in job.kinds()
    job.run("a")
    # The list is not awaited: its thread may count it later.
    with job.job.subtask(job._ask) as subtask:
        names = subtask._call_journal._listing.result()
    assert names == []


def test_without_a_kept_call_nothing_is_requested() -> None:
    job = Job()
    job.run("a")
    assert "put calls" not in job.kinds()


def test_a_task_that_dies_before_its_manifest_has_kept_all(monkeypatch: Any) -> None:
    job = Job()
    job.run("a", "b", crash=True)
    assert len(job.objects) == 1
    assert job.run("a", "b") == [("a", "text"), ("b", "text")]
    assert len(job.service.asked) == 2


def test_another_parallelism_finds_all_answers() -> None:
    job, keys = Job(), [f"k{number}" for number in range(50)]
    job.job.restart(parallelism=4)
    job.run(*keys, crash=True)
    assert len(job.objects) == 4
    for parallelism in (3, 8, 1):
        job.job.restart(parallelism=parallelism)
        job.storage.reset()
        job.run(*keys, crash=True)
        gets = [name for kind, name in job.storage.requests if kind == "get" and "calls" in name]
        # A subtask reads the objects with its key groups alone.
        assert len(gets) == {3: 5, 8: 8, 1: 4}[parallelism]
    assert len(job.run(*keys)) == len(job.service.asked) == 50


def test_a_sink_that_fails_after_all_manifests_repeats_no_call() -> None:
    job = Job()
    job.run("a", "b")
    job.job.restart(batch_id=0)
    job.run("a", "b")
    assert len(job.service.asked) == 2


def test_a_batch_that_is_planned_anew_finds_nothing() -> None:
    job = Job()
    job.job.checkpoint = Checkpoint(location="here", times_ms={})
    job.run("a")
    job.job.restart(batch_id=0)
    job.run("a")  # the same time: Spark repeats the batch
    assert len(job.service.asked) == 1
    job.job.restart(batch_id=0)
    job.job.clock.advance(timedelta(seconds=1))
    job.run("a")
    assert len(job.service.asked) == 2


def test_the_janitor_deletes_answers_with_their_version() -> None:
    job = Job()
    for _ in range(4):
        job.run("a")
    job.job.run(job._ask, [])
    janitor = Janitor(job.job.storage, run_key=job.job.run_key, retention=1, min_age=timedelta(0))
    for _ in range(2):
        janitor.sweep(5)
    assert {one.version for one in job.objects} == {4}


def test_answers_that_are_dropped_are_counted(monkeypatch: Any) -> None:
    monkeypatch.setattr(writer, "MOST_BYTES", 30)
    job = Job()
    job.run("a", "b", "c")
    (report,) = job.job.reports
    assert report.figures["call_dropped"] == 2
    assert report.figures["call_tries"] == 3
