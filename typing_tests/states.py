"""The types of states, futures and iterators. Type-checked, never run.

mypy fails on an ignore that is not needed, so every ignored line has an error.
"""

from __future__ import annotations

from typing import assert_type

import forebay_spark_runtime
import forebay_state_api
from forebay_state_api import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    SortedMapState,
    StateFuture,
    StateIterator,
    ValueState,
    combine_all,
    completed_future,
    completed_void_future,
    to_iterable,
)


def misspelt() -> None:
    forebay_state_api.ValuState  # type: ignore[attr-defined]
    forebay_spark_runtime.keyd  # type: ignore[attr-defined]


async def values(state: ValueState[int]) -> None:
    assert_type(state.value(), int)
    assert_type(state.async_value(), StateFuture[int])
    assert_type(await state.async_value() + 1, int)
    assert_type(await state.async_update(1), None)
    assert_type(await state.async_update(None), None)
    assert_type(await state.async_clear(), None)
    state.update("one")  # type: ignore[arg-type]
    await state.async_update("one")  # type: ignore[arg-type]


async def in_conditions(state: ValueState[int], elements: ListState[str]) -> None:
    """A state in a condition is a type error, and the code after it is still checked."""
    if state or await elements.async_get():  # type: ignore[truthy-bool]
        state.update("one")  # type: ignore[arg-type]
    state == 0  # type: ignore[comparison-overlap] # noqa: B015
    state.update("one")  # type: ignore[arg-type]


async def values_without_a_default(state: ValueState[int | None]) -> None:
    assert_type(state.value(), int | None)
    assert_type(await state.async_value(), int | None)
    state.update(1)
    state.update(None)
    await state.async_value() + 1  # type: ignore[operator]


async def lists(state: ListState[str]) -> None:
    assert_type(state.get(), list[str])
    assert_type(await state.async_get(), StateIterator[str])
    assert_type(await to_iterable(state.async_get()), list[str])
    async for element in await state.async_get():
        assert_type(element, str)
    state.add(1)  # type: ignore[arg-type]


async def maps(state: MapState[str, float]) -> None:
    assert_type(state.get("a"), float | None)
    assert_type(state["a"], float | None)
    assert_type(state.items(), list[tuple[str, float]])
    assert_type(await state.async_get("a"), float | None)
    assert_type(await state.async_contains("a"), bool)
    assert_type(await state.async_is_empty(), bool)
    async for key, value in await state.async_items():
        assert_type(key, str)
        assert_type(value, float)
    async for key in await state.async_keys():
        assert_type(key, str)
    state.put(1, 1.0)  # type: ignore[arg-type]


async def sorted_maps(state: SortedMapState[str, float]) -> None:
    assert_type(state.range("a", "b"), list[tuple[str, float]])
    assert_type(state.first(), tuple[str, float] | None)
    assert_type(await state.async_last(stop="b"), tuple[str, float] | None)
    async for key, value in await state.async_range("a"):
        assert_type(key, str)
        assert_type(value, float)
    assert_type(await state.async_remove_range(stop="b"), None)
    state.put(1, 1.0)  # type: ignore[arg-type]


async def reducing_and_aggregating(
    reducing: ReducingState[int], aggregating: AggregatingState[int, float]
) -> None:
    assert_type(await reducing.async_get(), int | None)
    assert_type(await aggregating.async_get(), float | None)
    assert_type(await aggregating.async_add(1), None)
    aggregating.add("one")  # type: ignore[arg-type]


async def futures(state: ValueState[int], text: ValueState[str]) -> None:
    known = completed_future(1)
    assert_type(known, StateFuture[int])
    assert_type(completed_void_future(), StateFuture[None])
    assert_type(known.then_apply(str), StateFuture[str])
    assert_type(known.then_accept(print), StateFuture[None])
    assert_type(known.then_compose(state.async_update), StateFuture[None])
    assert_type(known.then_combine(text.async_value(), _pair), StateFuture[tuple[int, str]])
    assert_type(await combine_all([known, known]), list[int])
    assert_type(await combine_all(one for one in [known]), list[int])
    number, word = await combine_all((known, text.async_value()))
    assert_type(number, int)
    assert_type(word, str)
    assert_type(
        await combine_all((known, text.async_value(), state.async_clear())), tuple[int, str, None]
    )
    assert_type(
        await combine_all((known, text.async_value(), known, known)), tuple[int, str, int, int]
    )
    assert_type(await combine_all((known, known, known, known, known)), tuple[int, ...])
    await combine_all(known)  # type: ignore[call-overload]


def _pair(number: int, text: str) -> tuple[int, str]:
    return number, text
