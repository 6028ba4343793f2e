"""Iterators over lists and maps (docs/reference/state.md): callbacks, coroutines and consumers."""

from __future__ import annotations

import pytest

from forebay_state_api.errors import FunctionError
from forebay_state_api.job.futures import completed_future
from forebay_state_api.job.iterators import to_iterable
from forebay_testing.backends.iterators import ELEMENTS, PAGES, IteratorSubject

from ..subjects import OnBoth


class TestIterators(OnBoth, IteratorSubject):
    @pytest.fixture(params=PAGES[1:3], ids=["pages of 3", "pages of 7"])
    def pages(self, request):
        return request.param

    def test_on_next_gives_none_if_no_call_returned_a_future(self, iterate):
        async def process(f, row, ctx):
            seen = []
            return [await (await f.l.async_get()).on_next(seen.append), seen]

        assert iterate(process) == [None, ELEMENTS]

    def test_on_next_gives_the_results_of_the_futures_in_order(self, iterate):
        async def process(f, row, ctx):
            def odd(element):
                if element % 2:
                    return f.m.async_get(str(element)).then_apply(lambda v: v * 10)
                return None

            return [await (await f.l.async_get()).on_next(odd)]

        assert iterate(process) == [[10, 30, 50]]

    def test_on_next_of_nothing_gives_an_empty_list(self, iterate):
        async def process(f, row, ctx):
            iterator = await f.l.async_get()
            items = await f.m.async_items()
            return [
                await iterator.on_next(lambda element: None),
                await items.on_next(completed_future),
                iterator.is_empty(),
                items.is_empty(),
            ]

        assert iterate(process, "empty") == [[], [], True, True]

    def test_on_next_drives_a_coroutine(self, iterate):
        async def process(f, row, ctx):
            async def look(element):
                return (element, await f.m.async_get(str(element)))

            return [await (await f.l.async_get()).on_next(look)]

        assert iterate(process) == [[(n, n) for n in ELEMENTS]]

    def test_on_next_ends_after_every_future_that_it_made(self, iterate):
        def process(f, row, ctx):
            def put(element):
                looked = f.m.async_get(str(element))
                return looked.then_compose(lambda v: f.m.async_put(str(element), v + 100))

            done = f.l.async_get().then_compose(lambda iterator: iterator.on_next(put))
            done.then_compose(lambda _: to_iterable(f.m.async_values())).then_accept(
                lambda values: ctx.collect(sorted(values))
            )

        assert iterate(process) == [[n + 100 for n in ELEMENTS]]

    def test_on_next_takes_no_other_return_value(self, iterate):
        async def process(f, row, ctx):
            await (await f.l.async_get()).on_next(lambda element: element)

        with pytest.raises(FunctionError, match="on_next") as failure:
            iterate(process)
        assert isinstance(failure.value.__cause__, TypeError)

    def test_is_empty_only_if_nothing_is_loaded_and_nothing_is_to_come(self, iterate):
        async def process(f, row, ctx):
            return [(await f.l.async_get()).is_empty(), await f.m.async_is_empty()]

        assert iterate(process) == [False, False]
        assert iterate(process, "empty") == [True, True]

    def test_a_consumer_may_stop_early(self, iterate):
        async def process(f, row, ctx):
            async for element in await f.l.async_get():
                if element == 4:
                    break
                yield element

        assert iterate(process) == [0, 1, 2, 3]

    def test_an_iterator_can_be_consumed_twice(self, iterate):
        async def process(f, row, ctx):
            iterator = await f.l.async_get()
            first = []
            second = []
            both = iterator.on_next(first.append), iterator.on_next(second.append)
            for one in both:
                await one
            third = [element async for element in iterator]
            return [first, second, third]

        assert iterate(process) == [ELEMENTS] * 3

    def test_to_iterable_loads_every_page(self, iterate):
        def process(f, row, ctx):
            to_iterable(f.l.async_get()).then_accept(ctx.collect)

        assert iterate(process) == [ELEMENTS]
        assert iterate(process, "empty") == [[]]
