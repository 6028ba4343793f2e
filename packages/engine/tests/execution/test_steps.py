"""Threads, failed futures and forgotten awaits (decision 0008)."""

from __future__ import annotations

import threading
import uuid
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

from forebay_state_api import (
    FunctionError,
    KeyedProcessFunction,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateAccessError,
    StateFuture,
    ValueStateDescriptor,
    combine_all,
    completed_future,
)
from forebay_testing.late_reads import late_backend
from forebay_testing.reference import ReferenceBackend

VALUE = ValueStateDescriptor("v", int, default=0)
MAP = MapStateDescriptor("m", int, int)
SUM = ReducingStateDescriptor("r", lambda a, b: a + b, int)


@pytest.fixture(params=["memory", "storage", "late"])
def run(request, new_job):
    """Runs a record method over rows, whose states are in memory or are not."""
    backend = (
        late_backend(ReferenceBackend, seed=3) if request.param == "late" else ReferenceBackend
    )
    job = new_job(backend, read_ahead=request.param == "memory")

    def run(process, rows=(("k",),), uid="operator"):
        class Function(KeyedProcessFunction):
            def open(self, context):
                self.v = context.get_state(VALUE)
                self.m = context.get_map_state(MAP)
                self.r = context.get_reducing_state(SUM)

            process_element = process

        job.uid = uid
        return job.run(Function(), rows)

    run.job = job
    return run


@pytest.mark.long
def test_five_thousand_callbacks_one_in_another(run):
    def process(self, row, ctx):
        def go(number):
            if number == 5_000:
                return completed_future(number)
            return self.v.async_value().then_compose(lambda _: go(number + 1))

        go(0).then_accept(ctx.collect)

    assert run(process) == [5_000]


# -- threads ----------------------------------------------------------------------------------


ACCESSES = [
    lambda f: f.v.value(),
    lambda f: f.v.update(1),
    lambda f: f.v.async_update(1),
    lambda f: f.v.clear(),
    lambda f: f.m.put(1, 1),
    lambda f: f.m.get(1),
    lambda f: f.m.items(),
    lambda f: f.r.async_add(1),
]


@pytest.mark.parametrize("thread", ["new", "of a pool", "older than the engine"])
def test_states_refuse_other_threads(run, thread):
    pool = ThreadPoolExecutor(1)
    if thread == "older than the engine":
        pool.submit(int).result()

    async def process(self, row, ctx):
        end = StateFuture()

        def work():
            try:
                ACCESSES[row[0]](self)
            except StateAccessError as error:
                end.complete(str(error))
            else:
                end.complete("no error")

        if thread == "new":
            threading.Thread(target=work).start()
        else:
            pool.submit(work)
        return [(row[0], await end)]

    rows = run(process, [(n,) for n in range(len(ACCESSES))])
    pool.shutdown()
    assert sorted(key for key, _ in rows) == [*range(len(ACCESSES))]
    assert all("was used on thread" in said for _, said in rows)

    async def read(self, row, ctx):
        return [(await self.v.async_value(), await self.m.async_is_empty())]

    assert run(read, [(n,) for n in range(5)]) == [(0, True)] * 5


def test_timers_refuse_other_threads(run):
    class Timed(KeyedProcessFunction):
        def on_timer(self, at, ctx):
            raise AssertionError

        async def process_element(self, row, ctx):
            end = StateFuture()

            def work():
                try:
                    ctx.timers.register_processing_time(ctx.timers.processing_time)
                except StateAccessError as error:
                    end.fail(error)
                else:
                    end.complete(None)

            threading.Thread(target=work).start()
            await end

    with pytest.raises(StateAccessError, match="was used on thread"):
        run.job.run(Timed(), [("k",)])


@pytest.mark.parametrize(
    "use",
    [lambda ctx: ctx.collect(("from", "elsewhere")), lambda ctx: ctx.set_current_namespace("x")],
)
def test_the_context_refuses_other_threads(run, use):
    async def process(self, row, ctx):
        end = StateFuture()

        def work():
            try:
                use(ctx)
            except StateAccessError as error:
                end.complete(str(error))
            else:
                end.complete("no error")

        threading.Thread(target=work).start()
        said = await end
        ctx.set_current_namespace("y")
        ctx.collect((row[0], said))

    rows = run(process, [(n,) for n in range(5)])
    assert sorted(key for key, _ in rows) == [*range(5)]
    assert all("was used on thread" in said for _, said in rows)


def test_no_thread_is_watched_after_the_engine_is_closed(run):
    async def process(self, row, ctx):
        assert threading.getprofile() is not None
        await self.v.async_value()

    before = threading.getprofile()
    run(process)
    assert threading.getprofile() is before


# -- users' futures ---------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["here", "in a thread"])
def test_a_failed_future_raises_where_it_is_awaited(run, where):
    async def process(self, row, ctx):
        future = StateFuture()
        _end(future, ConnectionError("no route"), where)
        try:
            await future
        except ConnectionError as error:
            await self.v.async_update(1)
            return [str(error)]

    assert run(process) == ["no route"]


@pytest.mark.parametrize("where", ["here", "in a thread"])
@pytest.mark.parametrize(
    "chain",
    [
        lambda f: f.then_accept(print),
        lambda f: f.then_apply(str),
        lambda f: f.then_compose(completed_future),
        lambda f: combine_all([f, completed_future(1)]),
    ],
)
def test_what_is_chained_to_a_failed_future_fails_the_batch(run, where, chain):
    async def process(self, row, ctx):
        future = StateFuture()
        after = chain(future)
        _end(future, ConnectionError("no route"), where)
        try:
            await after
        except ConnectionError:
            return ["caught"]

    with pytest.raises(FunctionError, match=r"key 'k'.*ConnectionError: no route") as failure:
        run(process)
    assert isinstance(failure.value.__cause__, ConnectionError)


def _end(future, error, where):
    if where == "here":
        future.fail(error)
    else:
        threading.Thread(target=future.fail, args=(error,)).start()


# -- forgotten awaits -------------------------------------------------------------------------


USES = [
    bool,
    str,
    int,
    float,
    list,
    lambda f: not f,
    lambda f: f == 1,
    lambda f: f != 1,
    lambda f: f < 1,
    lambda f: f >= 1,
    lambda f: f + 1,
    lambda f: 1 + f,
    lambda f: f - 1,
    lambda f: 2 * f,
    lambda f: f / 2,
    lambda f: f"{f}",
    lambda f: f["x"],
    lambda f: 1 in f,
]


@pytest.mark.parametrize("which", ["value", "entry", "sum", "write", "derived"])
def test_a_future_is_not_its_result(run, which):
    async def process(self, row, ctx):
        futures = {
            "value": self.v.async_value,
            "entry": lambda: self.m.async_get(1),
            "sum": self.r.async_get,
            "write": lambda: self.v.async_update(1),
            "derived": lambda: self.v.async_value().then_apply(str),
        }
        future = futures[which]()
        for use in USES:
            with pytest.raises(StateAccessError, match="was not awaited"):
                use(future)
        bool(future)

    with pytest.raises(StateAccessError, match="was not awaited") as failure:
        run(process)
    assert "process_element" in failure.value.__notes__[0]


def test_a_future_is_hashable_by_identity(run):
    async def process(self, row, ctx):
        first, second = self.v.async_value(), self.v.async_value()
        return [(len({first, second, first}), await first, await second)]

    assert run(process) == [(2, 0, 0)]


@pytest.mark.parametrize(
    "store",
    [
        lambda f: f.v.update(f.v.async_value()),
        lambda f: f.v.async_update(f.v.async_value()),
        lambda f: f.m.put(1, f.v.async_value()),
        lambda f: f.m.put(f.v.async_value(), 1),
        lambda f: f.r.async_add(f.v.async_value()),
    ],
)
def test_states_refuse_futures(run, store):
    async def process(self, row, ctx):
        await completed_future(0)
        store(self)

    with pytest.raises(StateAccessError, match="was not awaited"):
        run(process)


@pytest.mark.parametrize(
    "read",
    [
        lambda f: f.v.async_value(),
        lambda f: f.m.async_get(1),
        lambda f: f.m.async_contains(1),
        lambda f: f.m.async_items(),
        lambda f: f.r.async_get(),
    ],
)
@pytest.mark.parametrize("then", ["nothing", "a write", "an await"])
def test_a_read_that_is_dropped_is_warned_of_once(run, read, then):
    async def process(self, row, ctx):
        read(self)
        if then == "a write":
            self.v.async_update(1)
        elif then == "an await":
            await self.v.async_update(1)

    uid = f"dropped-{uuid.uuid4()}"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(process, [(n,) for n in range(3)], uid)
        run(process, [(n,) for n in range(3)], uid)
    assert len(caught) == 1
    assert "never awaited: `await" in str(caught[0].message)
    assert repr(uid) in str(caught[0].message)


def test_no_other_request_is_warned_of(run):
    async def process(self, row, ctx):
        self.v.async_update(1)
        self.r.async_add(1)
        self.v.async_value().then_accept(str)
        completed_future(1)
        value = self.v.async_value()
        await self.r.async_add(1)
        values = await combine_all([value, self.m.async_get(1), self.r.async_get()])
        return [values]

    assert run(process, [("a",), ("b",)]) == [[1, None, 2]] * 2
