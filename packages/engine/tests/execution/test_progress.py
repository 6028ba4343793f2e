"""Records wait for keys, limits, batches and other threads."""

from __future__ import annotations

import threading

import pytest

from forebay_engine.execution import engine
from forebay_engine.isolation.failed_record import ErrorRows
from forebay_state_api import (
    FunctionError,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StateAccessError,
    StateFuture,
    ValueStateDescriptor,
    completed_void_future,
)
from forebay_testing.reference import ReferenceBackend, ReferenceTable


class Gate(KeyedProcessFunction):
    """Each record waits until the test opens its gate."""

    def __init__(self):
        self.gates = {}
        self.started = []

    async def process_element(self, row, ctx):
        self.started.append(row)
        gate = self.gates[row] = StateFuture()
        return [(row, await gate, ctx.current_key)]


@pytest.fixture
def gate(job):
    """(function, subtask), running."""
    function = Gate()
    with job.subtask(function) as running:
        running.engine.function.gates = function.gates
        running.engine.function.started = function.started
        yield function, running


def admit(running, *rows):
    running.process(rows, [row[0] for row in rows], [0] * len(rows))


def test_a_key_waits_and_other_keys_overtake(gate):
    function, running = gate
    admit(running, ("a", 1), ("a", 2), ("b", 1), ("a", 3), ("b", 2))
    assert function.started == [("a", 1), ("b", 1)]
    metrics = running.metrics
    assert (metrics.in_flight, metrics.blocked_keys, metrics.records) == (2, 3, 5)
    function.gates["b", 1].complete("x")
    admit(running, ("c", 1))
    assert function.started[2:] == [("c", 1), ("b", 2)], "what can run has run"
    assert running.take_rows() == [(("b", 1), "x", "b")]
    function.gates["a", 1].complete("x")
    for row in [("a", 2), ("a", 3), ("b", 2), ("c", 1)]:
        threading.Timer(0.01, open_when_there, (function, row)).start()
    running.drain()
    rows = [(row, key) for row, _, key in running.take_rows()]
    assert [row for row, _ in rows if row[0] == "a"] == [("a", 1), ("a", 2), ("a", 3)]
    assert all(row[0] == key for row, key in rows)
    assert len(rows) == 5
    metrics = running.metrics
    assert (metrics.in_flight, metrics.blocked_keys, metrics.waiting_requests) == (0, 0, 0)


def open_when_there(function, row):
    while row not in function.gates:
        threading.Event().wait(0.001)
    function.gates[row].complete("x")


class Begins(KeyedProcessFunction):
    """Emits a row and writes; the key ``waits`` then waits for a gate; emits a second row."""

    def __init__(self, gates):
        self.gates = gates

    def open(self, context):
        self.value = context.get_state(ValueStateDescriptor("value", int))
        self.list = context.get_list_state(ListStateDescriptor("list", int))

    def on_timer(self, at, ctx):
        """Have timers."""

    def write(self, row, ctx):
        self.value.update(1)
        self.list.add(1)
        ctx.timers.register_processing_time(ctx.timers.processing_time)
        if row == ("ends",):
            return completed_void_future()
        self.gates.append(StateFuture())
        return self.gates[-1]


class Collects(Begins):
    async def process_element(self, row, ctx):
        ctx.collect((*row, "began"))
        await self.write(row, ctx)
        return [(*row, "ended")]


class Yields(Begins):
    async def process_element(self, row, ctx):
        yield (*row, "began")
        await self.write(row, ctx)
        yield (*row, "ended")


class Chains(Begins):
    def process_element(self, row, ctx):
        ctx.collect((*row, "began"))
        self.write(row, ctx).then_accept(lambda _: ctx.collect((*row, "ended")))


@pytest.mark.parametrize("kind", [Collects, Yields, Chains])
@pytest.mark.parametrize("error_rows", [None, ErrorRows()], ids=["fail", "column"])
def test_what_an_unfinished_record_emits_and_writes_stays_with_it(
    job, monkeypatch, kind, error_rows
):
    gates, written = [], {"ends": set(), "waits": set()}

    def apply(table, changes):
        for key, tables in written.items():
            if repr(key) in repr(changes):
                tables.add(table.spec.name)
        apply_to(table, changes)

    apply_to = ReferenceTable.apply
    monkeypatch.setattr(ReferenceTable, "apply", apply)
    monkeypatch.setattr(engine, "SPILL_CELLS", -1)  # writes are handed over after every chunk
    job.error_rows = error_rows
    with job.subtask(kind(gates)) as running:
        admit(running, ("waits",), ("ends",))
        assert running.take_rows() == [("ends", "began"), ("ends", "ended")]
        assert written == {"ends": {"value", "list", "__timers__"}, "waits": set()}
        gates[0].complete(None)
        running.drain()
        assert running.take_rows() == [("waits", "began"), ("waits", "ended")]
        running.commit()
        assert written["waits"] == written["ends"]


@pytest.mark.long
def test_a_key_that_many_records_wait_for_needs_no_stack(job):
    """Records that end at once, queued behind one that waits, while other keys are held too."""
    held = {}

    async def process(row, ctx):
        if row[1] == "wait":
            held[row[0]] = StateFuture()
            await held[row[0]]
        return [row]

    with job.subtask(process) as running:
        admit(running, ("other", "wait"), ("hot", "wait"), *[("hot", n) for n in range(5_000)])
        assert running.metrics.blocked_keys == 5_000
        for future in held.values():
            future.complete(None)
        running.drain()
        rows = running.take_rows()
    assert [n for key, n in rows if key == "hot"] == ["wait", *range(5_000)]


def test_at_most_so_many_records_are_in_flight(new_job):
    job = new_job(in_flight_limit=3, drain_timeout_s=0.05)
    function = Gate()
    with job.subtask(function) as running:
        running.engine.function.started = function.started
        with pytest.raises(FunctionError, match="nobody completed"):
            admit(running, *[(f"k{n}", 1) for n in range(9)])
        running.close(failed=True)
    assert len(function.started) == 3


class Looking(KeyedProcessFunction):
    def open(self, context):
        self.m = context.get_map_state(MapStateDescriptor("m", int, int))

    async def process_element(self, row, ctx):
        for n in range(row[1]):
            await self.m.async_get(n)


batches = []


class CountingTable(ReferenceTable):
    def get_entries(self, namespace, cells):
        batches.append(len(cells))
        return super().get_entries(namespace, cells)


class CountingBackend(ReferenceBackend):
    def table(self, spec):
        table = super().table(spec)
        table.__class__ = CountingTable
        return table


def test_batches_go_out_when_full_or_when_nothing_else_can_run(new_job):
    batches.clear()
    job = new_job(CountingBackend, batch_size=4)
    job.run(Looking(), [(f"k{n}", 1) for n in range(10)])
    assert sorted(batches) == [2, 4, 4]
    batches.clear()
    job.run(Looking(), [("k", 3)])
    assert batches == [1, 1, 1], "a chain waits for no timer and no company"


def test_the_last_requests_are_under_way_when_rows_have_been_admitted(new_job):
    batches.clear()
    job = new_job(CountingBackend)
    with job.subtask(Looking()) as running:
        admit(running, ("a", 1))
        assert running.metrics.waiting_requests == 1, "a batch, on its way"
        running.drain()
        assert running.metrics.waiting_requests == 0
    assert batches == [1]


def test_points_are_read_ahead_while_requests_are_out(new_job):
    class Both(Looking):
        def open(self, context):
            super().open(context)
            self.v = context.get_state(ValueStateDescriptor("v", int))

        async def process_element(self, row, ctx):
            await self.m.async_get(0)
            await self.v.async_value()

    job = new_job(read_ahead=True)
    with job.subtask(Both()) as running:
        admit(running, ("a", 1), ("b", 1))
        admit(running, ("a", 2), ("c", 1))
        running.drain()
        assert running.metrics.read_ahead_cells == 3
        assert running.metrics.requests == 3, "each map entry once; no value"


def test_a_future_that_nobody_completes_fails_at_once_without_other_threads(new_job, monkeypatch):
    own = threading.Thread(name="forebay-compaction")
    # Other tests may have left threads of libraries behind.
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread(), own])
    job = new_job(drain_timeout_s=3600)
    with pytest.raises(FunctionError) as failure:
        job.run(Gate(), [("k", 1)])
    message = str(failure.value)
    for part in ("Gate.process_element", "'operator'", "key 'k'", "batch 0", "partition 0"):
        assert part in message
    assert "no other thread" in message


def test_while_another_thread_lives_the_wait_is_bounded(new_job):
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        with pytest.raises(FunctionError, match=r"key 'k'.*drain timeout of 0\.05 s"):
            new_job(drain_timeout_s=0.05).run(Gate(), [("k", 1)])
    finally:
        done.set()
        thread.join()


@pytest.mark.long
def test_completions_by_many_threads(job):
    def start(row, ctx):
        future = StateFuture()
        threading.Thread(target=future.complete, args=(row,)).start()
        main = threading.get_ident()

        def answered(answer):
            assert threading.get_ident() == main
            assert ctx.current_key == answer[0]
            ctx.collect(answer)

        future.then_accept(answered)

    rows = [(n % 7, n) for n in range(200)]
    out = job.run(start, rows)
    assert sorted(out) == sorted(rows)
    for key in range(7):
        assert [row for row in out if row[0] == key] == [row for row in rows if row[0] == key]


def test_a_future_from_outside_is_awaited_inside(job):
    shared = StateFuture()

    async def process(row, ctx):
        return [(row[0], await shared)]

    with job.subtask(process) as running:
        admit(running, ("a",), ("b",))
        thread = threading.Thread(target=shared.complete, args=("news",))
        thread.start()
        thread.join()
        running.drain()
        assert sorted(running.take_rows()) == [("a", "news"), ("b", "news")]


def test_futures_of_records_are_chained_on_the_task_thread_only(job):
    errors = []

    def chain(future):
        try:
            future.then_accept(print)
        except StateAccessError as error:
            errors.append(str(error))

    class Read(KeyedProcessFunction):
        def open(self, context):
            self.v = context.get_state(ValueStateDescriptor("v", int))

        def process_element(self, row, ctx):
            for future in (self.v.async_value(), StateFuture()):
                thread = threading.Thread(target=chain, args=(future,))
                thread.start()
                thread.join()

    job.run(Read(), [("k",)])
    assert len(errors) == 2
    assert "task thread" in errors[0]


def test_what_the_engine_completes_nobody_else_does(job):
    class Meddle(KeyedProcessFunction):
        def open(self, context):
            self.v = context.get_state(ValueStateDescriptor("v", int))

        def process_element(self, row, ctx):
            self.v.async_value().complete(5)

    with pytest.raises(StateAccessError, match="by the engine") as failure:
        job.run(Meddle(), [("k",)])
    assert "Meddle.process_element" in failure.value.__notes__[0]


def test_two_subtasks_may_take_turns_on_one_thread(job):
    """The runtime may pull from two operators alternately."""

    class Count(KeyedProcessFunction):
        def open(self, context):
            self.v = context.get_state(ValueStateDescriptor("v", int, default=0))

        async def process_element(self, row, ctx):
            n = await self.v.async_value() + 1
            await self.v.async_update(n)
            return [(row[0], n)]

    with job.subtask(Count()) as one, job.subtask(Count()) as two:
        for _ in range(3):
            admit(one, ("a",))
            admit(two, ("b",))
        one.drain()
        two.drain()
        assert one.rows_ready == 3
        assert one.take_rows() == [("a", 1), ("a", 2), ("a", 3)]
        assert one.rows_ready == 0
        assert two.take_rows() == [("b", 1), ("b", 2), ("b", 3)]
