"""Iterators over lists and maps (docs/reference/state.md), over several pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from forebay_state_api.job.descriptors import ListStateDescriptor, MapStateDescriptor
from forebay_state_api.settings import EngineSettings
from forebay_testing.backends.subject import BackendSubject, NewJob, Recorded
from forebay_testing.job import KeyedJob

Iterate = Callable[..., list[Any]]

PAGES = [EngineSettings(page_size=size, drain_timeout_s=5) for size in (1, 3, 7, 128)]
ELEMENTS = list(range(7))


class IteratorSubject(BackendSubject):
    """The states under test hold seven elements under ``k``, none under ``empty``."""

    @pytest.fixture(params=PAGES, ids=lambda settings: f"pages of {settings.page_size}")
    def pages(self, request: pytest.FixtureRequest) -> EngineSettings:
        """The engine, with pages of several sizes."""
        settings: EngineSettings = request.param
        return settings

    @pytest.fixture
    def seven(self, new_job: NewJob, pages: EngineSettings) -> KeyedJob:
        """A job with a list ``l`` and a map ``m``, stored."""
        job = new_job(
            ListStateDescriptor("l", int), MapStateDescriptor("m", str, int), settings=pages
        )
        job.do("k", ("l.add_all", ELEMENTS), ("m.put_all", {str(n): n for n in ELEMENTS}))
        job.restart()
        return job

    @pytest.fixture
    def iterate(self, seven: KeyedJob) -> Iterate:
        """Return a function that runs another one over a record and returns its rows."""

        def run(process: Callable[..., Any], key: str = "k") -> list[Any]:
            return seven.run(Recorded(_opened, process), [(key,)])

        return run


class IteratorTests(IteratorSubject):
    """Iterators show the state as it was requested, over several pages."""

    def test_async_for(self, iterate: Iterate) -> None:
        async def process(f: Any, row: Any, ctx: Any) -> list[Any]:
            elements = [element async for element in await f.l.async_get()]
            keys = [key async for key in await f.m.async_keys()]
            values = [value async for value in await f.m.async_values()]
            return [elements, sorted(keys), sorted(values)]

        assert iterate(process) == [ELEMENTS, list(map(str, ELEMENTS)), ELEMENTS]
        assert iterate(process, "empty") == [[], [], []]

    def test_an_iteration_sees_the_state_as_it_stood_when_it_was_requested(
        self, iterate: Iterate
    ) -> None:
        async def process(f: Any, row: Any, ctx: Any) -> list[Any]:
            f.l.async_add(7)
            f.m.async_remove("0")
            requested = f.l.async_get(), f.m.async_items()
            f.l.async_update([99])
            f.m.async_put("new", 99)
            f.m.async_put("1", 99)
            f.m.async_remove("2")
            elements = [element async for element in await requested[0]]
            entries = sorted([entry async for entry in await requested[1]])
            f.m.async_clear()
            f.l.async_clear()
            again = [element async for element in await requested[0]]
            entries_again = sorted([entry async for entry in await requested[1]])
            return [elements, entries, again == elements, entries_again == entries]

        entries = [(str(n), n) for n in ELEMENTS if n]
        assert iterate(process) == [[*ELEMENTS, 7], entries, True, True]
        assert iterate(_count) == [(0, 0)]

    def test_changing_the_state_during_the_iteration(self, iterate: Iterate) -> None:
        async def process(f: Any, row: Any, ctx: Any) -> list[Any]:
            seen = []
            async for key, value in await f.m.async_items():
                seen.append(value)
                await f.m.async_remove(key)
                await f.m.async_put(key + "x", value)
            async for element in await f.l.async_get():
                await f.l.async_add(element)
            return [sorted(seen)]

        assert iterate(process) == [ELEMENTS]
        assert iterate(_count) == [(14, 7)]

    def test_what_was_written_before_the_request_is_seen(self, iterate: Iterate) -> None:
        async def process(f: Any, row: Any, ctx: Any) -> list[Any]:
            f.m.put("3", 33)
            f.m.remove("4")
            f.m.put("9", 9)
            items = [item async for item in await f.m.async_items()]
            f.m.clear()
            f.m.put("a", 1)
            return [sorted(items), [item async for item in await f.m.async_items()]]

        left = [("0", 0), ("1", 1), ("2", 2), ("3", 33), ("5", 5), ("6", 6), ("9", 9)]
        assert iterate(process) == [left, [("a", 1)]]


def _opened(function: Any, context: Any) -> None:
    function.l = context.get_list_state(ListStateDescriptor("l", int))
    function.m = context.get_map_state(MapStateDescriptor("m", str, int))


async def _count(f: Any, row: Any, ctx: Any) -> list[Any]:
    elements = [element async for element in await f.l.async_get()]
    return [(len(elements), len([key async for key in await f.m.async_keys()]))]
