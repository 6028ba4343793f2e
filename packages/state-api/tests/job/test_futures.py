"""Futures outside an engine; inside one, the kit tests them on every backend."""

from __future__ import annotations

import asyncio
import threading

import pytest

from forebay_state_api import (
    StateAccessError,
    StateFuture,
    combine_all,
    completed_future,
    completed_void_future,
)
from forebay_state_api.job.asyncio_future import AsyncioFuture


@pytest.fixture(params=["pending", "completed"])
def future(request):
    """(future, complete): the future is of 5, at once or when ``complete`` is called."""
    if request.param == "completed":
        return completed_future(5), lambda: None
    pending = StateFuture()
    return pending, lambda: pending.complete(5)


def value_of(future):
    seen = []
    future.then_accept(seen.append)
    assert len(seen) == 1, f"{future!r} is not done"
    return seen[0]


async def _is_small(value):
    return value < 3


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        (lambda f: f.then_apply(lambda v: v + 1), 6),
        (lambda f: f.then_accept(lambda v: v + 1), None),
        (lambda f: f.then_compose(lambda v: completed_future(v + 1)), 6),
        (lambda f: f.then_combine(completed_future(2), lambda a, b: a * b), 10),
        (lambda f: completed_future(2).then_combine(f, lambda a, b: a - b), -3),
        (lambda f: f.then_conditionally_apply(lambda v: v > 3, lambda v: "yes"), (True, "yes")),
        (lambda f: f.then_conditionally_apply(lambda v: v < 3, lambda v: "yes"), (False, None)),
        (
            lambda f: f.then_conditionally_apply(lambda v: v < 3, lambda v: 1, lambda v: -v),
            (False, -5),
        ),
        (lambda f: f.then_conditionally_apply(_is_small, lambda v: "yes"), (False, None)),
        (lambda f: f.then_conditionally_compose(_is_small, completed_future), (False, None)),
        (lambda f: f.then_conditionally_accept(lambda v: v > 3, lambda v: "x"), True),
        (lambda f: f.then_conditionally_accept(lambda v: v < 3, lambda v: "x"), False),
        (lambda f: f.then_conditionally_compose(lambda v: v > 3, completed_future), (True, 5)),
        (lambda f: f.then_conditionally_compose(lambda v: v < 3, completed_future), (False, None)),
        (
            lambda f: f.then_conditionally_compose(
                lambda v: v < 3, completed_future, lambda v: completed_future(-v)
            ),
            (False, -5),
        ),
        (lambda f: combine_all([f, completed_future("x"), f]), [5, "x", 5]),
    ],
)
def test_chains(future, chain, expected):
    subject, complete = future
    result = chain(subject)
    complete()
    assert value_of(result) == expected


def test_callbacks_run_in_the_order_of_registration(future):
    subject, complete = future
    seen = []
    for number in range(5):
        subject.then_apply(lambda _, number=number: seen.append(number))
    complete()
    assert seen == [0, 1, 2, 3, 4]


def test_a_callback_attached_in_a_callback_keeps_the_order():
    subject, seen = StateFuture(), []

    def first(_):
        subject.then_accept(lambda _: seen.append("third"))
        seen.append("first")

    subject.then_accept(first)
    subject.then_accept(lambda _: seen.append("second"))
    subject.complete(1)
    assert seen == ["first", "second", "third"]


def test_a_callback_of_a_completed_future_runs_at_once_in_the_caller(future):
    subject, complete = future
    complete()
    seen = []
    subject.then_accept(lambda _: seen.append(threading.get_ident()))
    assert seen == [threading.get_ident()]


def test_nothing_runs_before_completion():
    subject, seen = StateFuture(), []
    subject.then_accept(seen.append)
    assert seen == []
    assert repr(subject) == "<StateFuture pending>"
    subject.complete(1)
    assert seen == [1]
    assert repr(subject) == repr(completed_future(1)) == "<StateFuture 1>"


@pytest.mark.parametrize("make", [StateFuture, lambda: completed_future(0), completed_void_future])
def test_completing_twice(make):
    future = make()
    if make is StateFuture:
        future.complete(1)
    with pytest.raises(StateAccessError, match="once"):
        future.complete(2)


def test_completing_twice_before_anybody_listens():
    future = StateFuture()
    future.complete(None)
    with pytest.raises(StateAccessError):
        future.complete(None)


def test_a_future_that_a_chain_made_is_not_completed_by_hand():
    made = StateFuture().then_apply(lambda v: v)
    with pytest.raises(StateAccessError):
        made.complete(1)


def test_outside_an_engine_callbacks_run_in_the_completing_thread():
    future, seen = StateFuture(), []
    future.then_accept(lambda _: seen.append(threading.get_ident()))
    thread = threading.Thread(target=future.complete, args=(1,))
    thread.start()
    thread.join()
    assert seen == [thread.ident]


@pytest.mark.parametrize("wrong", [None, 5, "x"])
def test_composing_something_that_is_no_future(future, wrong):
    subject, complete = future

    def compose():
        subject.then_compose(lambda _: wrong)
        complete()

    with pytest.raises(TypeError, match=r"then_compose takes.*then_apply"):
        compose()


def test_conditionally_composing_something_that_is_no_future():
    with pytest.raises(TypeError, match=r"then_conditionally_compose.*then_conditionally_apply"):
        completed_future(1).then_conditionally_compose(lambda _: True, lambda v: v)


def test_combining_nothing_is_done_at_once():
    assert value_of(combine_all([])) == []


def test_combining_keeps_the_order_of_the_arguments():
    futures = [StateFuture() for _ in range(3)]
    both = combine_all(iter(futures))
    for number in (2, 0, 1):
        futures[number].complete(number)
    assert value_of(both) == [0, 1, 2]


@pytest.mark.parametrize(("wrong", "error"), [(None, ValueError), (5, TypeError)])
def test_combining_something_that_is_no_future(wrong, error):
    with pytest.raises(error, match="number 1"):
        combine_all([completed_future(1), wrong])


def test_an_exception_in_a_callback_reaches_whoever_completes():
    future = StateFuture()
    future.then_accept(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        future.complete(1)


def test_there_is_no_error_callback_and_no_way_to_block():
    asyncios = {name for name in vars(AsyncioFuture) if not name.startswith("_")}
    assert asyncios <= set(dir(asyncio.Future))
    names = {name for name in dir(StateFuture) if not name.startswith("_")} - asyncios
    assert names == {
        "complete",
        "fail",
        "then_accept",
        "then_apply",
        "then_combine",
        "then_compose",
        "then_conditionally_accept",
        "then_conditionally_apply",
        "then_conditionally_compose",
    }


def test_a_tuple_of_futures_gives_a_tuple():
    both = combine_all((completed_future(1), StateFuture()))
    assert value_of(combine_all((completed_future(1), completed_future("x")))) == (1, "x")
    assert value_of(combine_all(())) == ()
    assert repr(both) == "<StateFuture pending>"
    with pytest.raises(ValueError, match="number 1 is None"):
        combine_all((completed_future(1), None))
