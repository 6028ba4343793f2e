"""A function with a broadcast input: forms, order, what it may write, and what fails."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest

from forebay_state_api import (
    CheckpointedFunction,
    ConfigurationError,
    FunctionError,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    StateAccessError,
    StateFuture,
    ValueStateDescriptor,
    completed_future,
)
from forebay_state_api.errors import PluginError
from forebay_testing import FunctionHarness
from forebay_testing.reference import ReferenceTable

RULES = MapStateDescriptor("rules", str, int)
COUNT = ValueStateDescriptor("count", int)


class Event(NamedTuple):
    key: str
    kind: str


class At(NamedTuple):
    key: str
    at: datetime


class Rule(NamedTuple):
    kind: str
    value: int


class Base(KeyedBroadcastProcessFunction):
    """Counts a key's rows; emits the count and the rule of the row's kind."""

    def open(self, context):
        self.rules = context.get_broadcast_state(RULES)
        self.count = context.get_state(COUNT)

    def process_element(self, row, ctx):
        self.count.update((self.count.value() or 0) + 1)
        yield row.key, self.count.value(), self.rules.get(row.kind)

    def process_broadcast_element(self, row, ctx):
        self.rules.put(row.kind, row.value)


class Plain(Base):
    def process_broadcast_element(self, row, ctx):
        self.rules.put(row.kind, row.value)
        ctx.apply_to_keyed_state(COUNT, lambda key, state: state.update(state.value() + row.value))
        return [("rule", row.kind, ctx.subtask_index)]


class Generator(Base):
    def process_broadcast_element(self, row, ctx):
        self.rules.put(row.kind, row.value)

        def visit(_, state):
            state.async_value().then_accept(lambda n: state.update(n + row.value))

        ctx.apply_to_keyed_state(COUNT, visit)
        yield "rule", row.kind, ctx.subtask_index


class Coroutine(Base):
    async def process_broadcast_element(self, row, ctx):
        await self.rules.async_put(row.kind, row.value)

        async def visit(_, state):
            await state.async_update(await state.async_value() + row.value)

        await ctx.async_apply_to_keyed_state(COUNT, visit)
        ctx.collect(("rule", row.kind, ctx.subtask_index))


class AsyncGenerator(Base):
    async def process_broadcast_element(self, row, ctx):
        await ctx.get_broadcast_state(RULES).async_put(row.kind, row.value)

        async def visit(_, state):
            await state.async_update(await state.async_value() + row.value)
            if False:
                yield

        await ctx.async_apply_to_keyed_state(COUNT, visit)
        yield "rule", row.kind, ctx.subtask_index


@pytest.mark.filterwarnings("ignore:operator .* mixes asynchronous:RuntimeWarning")
@pytest.mark.parametrize("function", [Plain, Generator, Coroutine, AsyncGenerator])
@pytest.mark.parametrize("late_answers", [None, 5])
def test_every_form_does_the_same(function, late_answers):
    events = [Event(f"key {n}", "x") for n in range(5)]
    with FunctionHarness(
        function(), "key", parallelism=2, late_answers=late_answers, in_flight_limit=3
    ) as harness:
        # The rules come first, though the events are the first input.
        rules = [("rule", "x", 0), ("rule", "x", 1)]
        first = harness.process(events, [Rule("x", 10)])
        assert sorted(first) == sorted(rules + [(event.key, 1, 10) for event in events])
        # Every key has the state by now.
        assert sorted(harness.process([], [Rule("x", 20)])) == rules
        second = harness.process(events[:2])
        assert sorted(second) == [(event.key, 22, 20) for event in events[:2]]


def test_the_state_is_whole_in_every_subtask_after_a_rescale_or_a_step_back():
    with FunctionHarness(Base(), "key", parallelism=2) as harness:
        harness.process([], [Rule("x", 1), Rule("y", 2)])
        harness.process([], [Rule("x", 3)])
        for parallelism in (5, 1, 3):
            harness.restart(parallelism=parallelism)
            harness.process([])
            assert harness.operator_state(RULES) == [{"x": 3, "y": 2}] * parallelism
        harness.restart(version=1)
        assert sorted(harness.process([Event("a", "x"), Event("b", "y")])) == [
            ("a", 1, 1),
            ("b", 1, 2),
        ]


def test_a_fork_begins_with_the_state_of_its_source(tmp_path):
    with FunctionHarness(Base(), "key", parallelism=2, state_dir=tmp_path, query="old") as old:
        old.process([Event("a", "x")], [Rule("x", 1)])
    with FunctionHarness(
        Base(), "key", parallelism=3, state_dir=tmp_path, query="new", restore_from="old"
    ) as new:
        assert new.process([Event("a", "x")]) == [("a", 2, 1)]
        assert new.operator_state(RULES) == [{"x": 1}] * 3


class Timed(Base):
    """Gives each row a timer at its time, which emits the rule of that moment."""

    def process_element(self, row, ctx):
        ctx.timers.register_event_time(row.at)

    def process_broadcast_element(self, row, ctx):
        self.rules.put(row.kind, row.value)
        ctx.collect(("watermark", ctx.timers.watermark))

    def on_timer(self, at, ctx):
        yield ctx.current_key, self.rules.get("x")


def test_due_timers_come_before_broadcast_rows_which_have_no_part_in_the_watermark():
    start = datetime(2024, 7, 1, tzinfo=UTC)
    with FunctionHarness(Timed(), "key", event_time="at") as harness:
        harness.process([At("a", start)], [Rule("x", 1)])
        # A micro-batch of rules alone leaves the watermark where it is.
        timer, mark = harness.process([], [Rule("x", 2)])
        assert (timer, mark) == (("a", 1), ("watermark", start))
        later = start + timedelta(hours=1)
        assert harness.process([At("b", later)], [Rule("x", 3)]) == [("watermark", start)]
        assert harness.process([], [Rule("x", 4)]) == [("b", 3), ("watermark", later)]


def test_the_end_of_a_bounded_dataframe_fires_timers_after_the_last_rules():
    start = datetime(2024, 7, 1, tzinfo=UTC)
    with FunctionHarness(Timed(), "key", event_time="at", parallelism=2) as harness:
        harness.process([At("a", start)], [Rule("x", 1)])
        rows = harness.process([At("b", start)], [Rule("x", 2)], end=True)
        # The timer of "a" was due when the micro-batch began, before its rules.
        fired = sorted(row for row in rows if row[0] != "watermark")
        assert fired == [("a", 1), ("b", 2)]


def test_rows_are_sorted_where_asked():
    rules = [Rule("x", 3), Rule("x", 1), Rule("x", 2)]
    with FunctionHarness(Base(), "key", parallelism=2, broadcast_order_by="value") as harness:
        harness.process([], rules)
        assert harness.operator_state(RULES) == [{"x": 3}] * 2
    with FunctionHarness(Base(), "key") as harness:
        harness.process([], rules)
        assert harness.operator_state(RULES) == [{"x": 2}]


class Waiting(Base):
    """Reads the rule before and after its state has answered."""

    async def process_element(self, row, ctx):
        before = self.rules.get(row.kind)
        await self.count.async_update((await self.count.async_value() or 0) + 1)
        yield row.key, before, self.rules.get(row.kind)

    def on_timer(self, at, ctx):
        """Have timers."""


def test_a_row_begins_when_everything_before_it_has_ended(new_job):
    """Without the barrier the records would see the rule change while they wait."""
    job = new_job()
    job.run(Waiting(), [Event("a", "x"), Event("b", "x")])
    with job.subtask(Waiting()) as running:
        running.process_broadcast([Rule("x", 1)])
        job.feed(running, job.keyed([Event("a", "x"), Event("b", "x")]))
        running.process_broadcast([Rule("x", 2)])
        running.drain()
        assert sorted(running.take_rows()) == [("a", 1, 1), ("b", 1, 1)]


def test_a_repeated_batch_applies_its_rows_once(new_job):
    class Adds(Base):
        def process_broadcast_element(self, row, ctx):
            self.rules.put(row.kind, (self.rules.get(row.kind) or 0) + row.value)

    job = new_job()
    job.run(Adds(), [], [Rule("x", 1)])
    job.run(Adds(), [], [Rule("x", 1)], crash=True)
    job.run(Adds(), [], [Rule("x", 1)])
    assert job.run(Adds(), [Event("a", "x")]) == [("a", 1, 2)]


def test_only_broadcast_rows_write_broadcast_state(new_job):
    class Writes(Base):
        where = ""

        def open(self, context):
            super().open(context)
            self.write("open")

        def process_element(self, row, ctx):
            self.write("element")
            return super().process_element(row, ctx)

        def process_broadcast_element(self, row, ctx):
            super().process_broadcast_element(row, ctx)
            ctx.apply_to_keyed_state(COUNT, lambda *_: self.write("visit"))

        def write(self, where):
            if where == self.where:
                for write in (
                    lambda: self.rules.put("x", 2),
                    lambda: self.rules.put_all({"x": 2}),
                    lambda: self.rules.remove("x"),
                    self.rules.clear,
                ):
                    with pytest.raises(StateAccessError, match=r"'rules'.*is read-only here"):
                        write()

    for where in ("open", "element", "visit"):
        function = Writes()
        function.where = where
        job = new_job(uid=where)
        job.run(function, [Event("a", "x")])
        assert job.run(function, [Event("a", "x")], [Rule("x", 1)]) == [("a", 2, 1)]


def test_a_broadcast_row_has_no_key(new_job):
    class Keyed(Base):
        def process_broadcast_element(self, row, ctx):
            self.count.update(1)

    with pytest.raises(StateAccessError, match="no current key") as caught:
        new_job().run(Keyed(), [], [Rule("x", 1)])
    assert "Keyed.process_broadcast_element" in caught.value.__notes__[0]


def test_a_row_that_fails_fails_the_batch_even_if_the_function_catches_it(new_job):
    class Fails(Base):
        def process_broadcast_element(self, row, ctx):
            super().process_broadcast_element(row, ctx)
            if row.value == 2:
                message = "trouble"
                raise ValueError(message)
            with contextlib.suppress(FunctionError):
                ctx.apply_to_keyed_state(COUNT, lambda *_: 1 / 0)

    job = new_job()
    job.run(Fails(), [Event("a", "x")])
    with pytest.raises(FunctionError, match=r"Fails.process_broadcast_element \(.*trouble"):
        job.run(Fails(), [], [Rule("x", 2)])
    with pytest.raises(FunctionError, match=r"Fails.apply_to_keyed_state \(.*key 'a'.*ZeroDiv"):
        job.run(Fails(), [], [Rule("x", 1)])
    assert job.run(Base(), [Event("a", "x")]) == [("a", 2, None)]


class Picky(Base):
    """Refuses keyed rows of the kind ``bad``, and visits where the rule's value is negative."""

    def process_element(self, row, ctx):
        yield from super().process_element(row, ctx)
        if row.kind == "bad":
            raise ValueError(row.kind)

    def process_broadcast_element(self, row, ctx):
        super().process_broadcast_element(row, ctx)
        with contextlib.suppress(Exception):
            ctx.apply_to_keyed_state(COUNT, self.plain if row.kind == "plain" else self.waiting)

    def plain(self, key, state):
        state.update(0)
        if self.rules.get("plain") < 0:
            raise ValueError(key)

    async def waiting(self, key, state):
        await state.async_update(await state.async_value() * 0)
        if self.rules.get("waiting") < 0:
            raise ValueError(key)


@pytest.mark.filterwarnings("ignore:operator .* mixes asynchronous:RuntimeWarning")
@pytest.mark.parametrize("kind", ["plain", "waiting"])
@pytest.mark.parametrize("late_answers", [None, 3])
def test_where_records_fail_alone_a_visit_fails_the_batch(kind, late_answers):
    with FunctionHarness(Picky(), "key", on_error="column", late_answers=late_answers) as harness:
        (good, bad) = harness.process([Event("a", "x"), Event("b", "bad")], [Rule("x", 1)])
        assert good == ("a", 1, 1)
        assert bad.message == "bad"
        with pytest.raises(FunctionError, match=r"Picky.apply_to_keyed_state \(.*key 'a'.*Value"):
            harness.process([], [Rule(kind, -1)])
        # The one that failed alone left nothing to visit, and the batch that failed is undone.
        assert harness.state(COUNT, "a") == 1
        harness.process([Event("b", "x")], [Rule(kind, 1)])
        assert [harness.state(COUNT, key) for key in "ab"] == [0, 1]


def test_visits_are_refused_where_they_cannot_work(new_job):
    class Visits(Base):
        def __init__(self, visit):
            self.visit = visit

        def process_broadcast_element(self, row, ctx):
            self.visit(ctx)

    class InAnElement(Base):
        def process_element(self, row, ctx):
            ctx.apply_to_keyed_state(COUNT, print)

    def nested(ctx):
        ctx.apply_to_keyed_state(COUNT, lambda *_: ctx.apply_to_keyed_state(COUNT, print))

    other = ValueStateDescriptor("other", int)
    twin = ValueStateDescriptor("count", str)
    job = new_job()
    job.run(Base(), [Event("a", "x")])
    for visit, error, text in [
        (nested, StateAccessError, "is for process_broadcast_element, and not for the function"),
        (lambda ctx: ctx.apply_to_keyed_state(other, print), ConfigurationError, "open.. declares"),
        (lambda ctx: ctx.apply_to_keyed_state(twin, print), ConfigurationError, "open.. declares"),
        (lambda ctx: ctx.apply_to_keyed_state(COUNT, None), FunctionError, r"fn\(key, state\)"),
    ]:
        with pytest.raises(error, match=text):
            job.run(Visits(visit), [], [Rule("x", 1)])
    with pytest.raises(StateAccessError, match="is for process_broadcast_element"):
        job.run(InAnElement(), [Event("a", "x")])


def test_an_error_of_the_backend_is_not_blamed_on_the_function(new_job, monkeypatch):
    job = new_job()
    job.run(Plain(), [Event("a", "x")])
    for method, word in (("keys", "read"), ("get_many", "read"), ("apply", "write")):

        def broken(*_, method=method):
            raise KeyError(method)

        text = f"backend failed in a {word}: KeyError: '{method}'"
        with monkeypatch.context() as patch:
            patch.setattr(ReferenceTable, method, broken)
            with pytest.raises(PluginError, match=text):
                # The second row finds writes of the first, which have to be handed over.
                job.run(Plain(), [], [Rule("x", 1), Rule("x", 1)])


def test_other_functions_have_no_broadcast_input(new_job):
    class Other(KeyedProcessFunction):
        def open(self, context):
            context.get_broadcast_state(RULES)

        def process_element(self, row, ctx):
            """Do nothing."""

    with pytest.raises(ConfigurationError, match="is for a KeyedBroadcastProcessFunction"):
        new_job().run(Other(), [Event("a", "x")])
    with (
        FunctionHarness(Base(), "key") as harness,
        pytest.raises(ConfigurationError, match="process takes a list of rows"),
    ):
        harness.process([], Rule("x", 1))


def test_it_may_have_operator_state_besides_and_broadcast_state_declared_earlier(new_job):
    class Both(Base, CheckpointedFunction):
        def initialize_state(self, context):
            self.same = context.operator_state_store.get_broadcast_state(RULES)

        def open(self, context):
            super().open(context)
            assert self.same is self.rules

        def snapshot_state(self, context):
            with pytest.raises(StateAccessError, match="read-only"):
                self.same.put("x", 5)

    job = new_job()
    job.run(Both(), [], [Rule("x", 1)])
    assert job.run(Base(), [Event("a", "x")]) == [("a", 1, 1)]


def test_a_row_may_await_a_future_that_another_thread_completes(new_job):
    class Awaits(Base):
        async def process_broadcast_element(self, row, ctx):
            future = StateFuture()
            threading.Thread(target=future.complete, args=[row.value * 2]).start()
            await self.rules.async_put(row.kind, await future)

    assert new_job().run(Awaits(), [Event("a", "x")], [Rule("x", 3)]) == [("a", 1, 6)]


def test_a_future_that_nobody_completes_fails_the_batch(new_job):
    class Stuck(Base):
        async def process_broadcast_element(self, row, ctx):
            await StateFuture()

    with pytest.raises(FunctionError, match=r"Stuck.process_broadcast_element .* nobody completed"):
        new_job(drain_timeout_s=0.1).run(Stuck(), [], [Rule("x", 3)])


# -- what cannot be awaited --------------------------------------------------------------------


async def _sleeps():
    await asyncio.sleep(0.001)


async def _turns():
    await asyncio.sleep(0)


async def _waits():
    await asyncio.Event().wait()


async def _times_out():
    async with asyncio.timeout(1):
        await _turns()


async def _uses_a_thread():
    await asyncio.to_thread(int)


async def _groups():
    async with asyncio.TaskGroup() as group:
        group.create_task(_turns())


OTHER_AWAITABLES = [_sleeps, _turns, _waits, _times_out, _uses_a_thread, _groups]


class Asynchronous(Base):
    """Its rows of the keyed input run on a loop."""

    async def process_element(self, row, ctx):
        return []


def awaiting(base, form, work):
    """A function that awaits ``work`` for a row of the broadcast input."""

    class Coroutine(base):
        async def process_broadcast_element(self, row, ctx):
            await work()

    class Generator(base):
        async def process_broadcast_element(self, row, ctx):
            await work()
            yield row

    class Returned(base):
        def process_broadcast_element(self, row, ctx):
            return work()

    class Chained(base):
        def process_broadcast_element(self, row, ctx):
            completed_future(1).then_apply(lambda _: work())

    forms = {"coroutine": Coroutine, "generator": Generator, "returned": Returned}
    return {**forms, "chained": Chained}[form]()


@pytest.mark.parametrize("work", OTHER_AWAITABLES)
@pytest.mark.parametrize("form", ["coroutine", "generator", "returned", "chained"])
@pytest.mark.parametrize("base", [Base, Asynchronous])
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_a_row_awaits_state_only(base, form, work):
    with FunctionHarness(awaiting(base, form, work), "key") as harness:
        with pytest.raises(FunctionError, match="can await state futures only") as raised:
            harness.process([], [Rule("x", 1)])
        assert isinstance(raised.value.__cause__, TypeError)
        assert harness.version == 0


@pytest.mark.parametrize("base", [Base, Asynchronous])
@pytest.mark.parametrize("work", [_sleeps, _turns, _times_out, _uses_a_thread, _groups])
def test_a_function_of_visited_keys_awaits_anything(base, work):
    class Visits(base):
        def process_broadcast_element(self, row, ctx):
            async def fn(key, state):
                await work()
                ctx.collect((key, await state.async_value()))

            ctx.apply_to_keyed_state(COUNT, fn)

    with FunctionHarness(Visits(), "key") as harness:
        harness.set_state(COUNT, "a", 3)
        harness.process([Event("b", "x")])
        assert ("a", 3) in harness.process([], [Rule("x", 1)])
