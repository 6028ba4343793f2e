"""The text of errors, and the state that failures leave behind."""

from __future__ import annotations

import gc
import logging
import traceback

import pytest

from forebay_state_api import (
    FunctionError,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    PluginError,
    StateAccessError,
    StateFuture,
    ValueStateDescriptor,
)
from forebay_testing.reference import ReferenceBackend, ReferenceTable


class Reading(KeyedProcessFunction):
    def open(self, context):
        self.v = context.get_state(ValueStateDescriptor("v", int))
        self.l = context.get_list_state(ListStateDescriptor("l", int))

    async def process_element(self, row, ctx):
        await self.v.async_value()
        return await self.then(row, ctx)

    async def then(self, row, ctx):
        return [row]


def failing(after):
    class Failing(Reading):
        then = after

    return Failing()


def test_the_text_of_an_error(job):
    async def after(self, row, ctx):
        raise LookupError("boom")

    job.run(Reading(), [("k", 1)])
    with pytest.raises(FunctionError) as failure:
        job.run(failing(after), [("k", 1)])
    first, *lines = str(failure.value).splitlines()
    assert first == (
        "failing.<locals>.Failing.process_element (operator 'operator', key 'k', batch 1, "
        "partition 0) raised LookupError: boom"
    )
    assert lines[-1].strip() == 'raise LookupError("boom")'
    assert isinstance(failure.value.__cause__, LookupError)


def test_a_traceback_shows_the_users_line_and_the_loop_that_called_it(job):
    def fails(row, ctx):
        raise LookupError("boom")

    with pytest.raises(FunctionError) as failure:
        job.run(fails, [("k", 1)])
    lines = "".join(traceback.format_exception(failure.value)).splitlines()
    assert '    raise LookupError("boom")' in lines
    assert "    rows = fn(row, context)" in lines


def test_the_blamed_record_is_the_one_that_failed(job):
    """Other records are in flight, of other keys and of the same one."""

    async def after(self, row, ctx):
        await self.l.async_get()
        if row == ("b", 2):
            raise LookupError("boom")

    rows = [(key, n) for n in range(4) for key in "abc"]
    with pytest.raises(FunctionError, match="key 'b'"):
        job.run(failing(after), rows)


class TwoSided(KeyedCoProcessFunction):
    def open(self, context):
        self.v = context.get_state(ValueStateDescriptor("v", int))

    def process_element1(self, row, ctx):
        return None

    def process_element2(self, row, ctx):
        self.v.async_value().then_accept(lambda _: 1 / 0)


def test_the_blamed_method_is_that_of_the_input(job):
    with pytest.raises(FunctionError, match=r"TwoSided\.process_element2 .*key 'k'"):
        job.run(TwoSided(), [("a",)], [("k",)])


def test_a_disguised_coroutine_awaits_what_is_not_awaitable(job):
    class Yields:
        def __await__(self):
            yield 1

    async def awaiting():
        await Yields()

    with pytest.raises(FunctionError, match=r"awaited 1: .*whatever asyncio can"):
        job.run(lambda row, ctx: awaiting(), [("k",)])


class OpenFails(Reading):
    def open(self, context):
        raise LookupError("boom")

    def close(self):
        raise LookupError("second")


def test_an_error_in_open(job, caplog):
    with pytest.raises(FunctionError, match=r"OpenFails\.open \(operator 'operator', batch 0"):
        job.run(OpenFails(), [("k",)])
    assert "second" in caplog.text, "what close raised is not the one that is reported"


class CloseFails(Reading):
    def close(self):
        raise LookupError("boom")


def test_an_error_in_close(job):
    with pytest.raises(FunctionError, match=r"CloseFails\.close"):
        job.run(CloseFails(), [("k",)])


class Broken(ReferenceTable):
    def get_many(self, namespace, keys):
        raise KeyError("broken")


class Stingy(ReferenceTable):
    def get_many(self, namespace, keys):
        return super().get_many(namespace, keys)[1:]


def backend_with(table_class):
    class Backend(ReferenceBackend):
        def table(self, spec):
            table = super().table(spec)
            table.__class__ = table_class
            return table

    return Backend


@pytest.mark.parametrize(("table", "text"), [(Broken, "broken"), (Stingy, "1 cells.*0")])
def test_a_backend_that_fails_is_not_the_functions_fault(new_job, table, text):
    with pytest.raises(PluginError, match=text) as failure:
        new_job(backend_with(table)).run(Reading(), [("k",)])
    assert not isinstance(failure.value, FunctionError)


def test_collecting_when_all_is_over(job):
    kept = []

    def keep(row, ctx):
        kept.append(ctx)

    with job.subtask(keep) as running:
        running.process([("k",)], ["k"], [0])
        running.commit()
    with pytest.raises(StateAccessError, match="after the last record"):
        kept[0].collect(("k",))
    with pytest.raises(StateAccessError, match="no current key"):
        _ = kept[0].current_key


def test_a_state_that_is_used_when_all_is_over(job):
    kept = []

    class Keep(Reading):
        def process_element(self, row, ctx):
            kept.append(self.v)

    job.run(Keep(), [("k",)])
    with pytest.raises(StateAccessError, match="no current key"):
        kept[0].value()


def test_coroutines_that_were_given_up_are_closed(new_job, caplog):
    job, closed = new_job(drain_timeout_s=0.01), []

    async def after(self, row, ctx):
        try:
            await StateFuture()
        finally:
            closed.append(row)
            if row[0] == "b":
                raise LookupError("too late")

    with caplog.at_level(logging.DEBUG), pytest.raises(FunctionError, match="nobody"):
        job.run(failing(after), [("a",), ("b",)])
    assert sorted(closed) == [("a",), ("b",)]
    assert "too late" in caplog.text
    gc.collect()


@pytest.mark.parametrize("namespace", [object(), ["list"], {"a": 1}])
def test_a_namespace_is_plain_and_hashable(job, namespace):
    def process(row, ctx):
        ctx.set_current_namespace(namespace)

    with pytest.raises(FunctionError) as failure:
        job.run(process, [("k",)])
    assert isinstance(failure.value.__cause__, TypeError)


def test_a_namespace_can_be_found_again(job):
    def process(row, ctx):
        ctx.set_current_namespace(float("nan"))

    with pytest.raises(FunctionError, match="equals nothing"):
        job.run(process, [("k",)])


def test_namespaces_of_open(job):
    class Early(Reading):
        def open(self, context):
            context.set_current_namespace("w")

    with pytest.raises(StateAccessError):
        job.run(Early(), [("k",)])


def test_a_descriptor_of_another_kind(job):
    class Wrong(Reading):
        def open(self, context):
            context.get_state(MapStateDescriptor("m", str, int))

    with pytest.raises(FunctionError, match="expected a ValueStateDescriptor"):
        job.run(Wrong(), [("k",)])
