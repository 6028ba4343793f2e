"""Names of calls: what is asked, never where or in which order."""

from __future__ import annotations

import functools
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import IntEnum
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from forebay_engine.journal.naming import CallNames, check_asks_by_arguments
from forebay_state_api.job.context import RuntimeContext

CTX = RuntimeContext(
    operator_uid="o",
    subtask_index=0,
    parallelism=1,
    max_parallelism=8,
    attempt_number=0,
    batch_id=0,
)


class Row(NamedTuple):
    k: str
    text: str


class Level(IntEnum):
    LOW = 1


PLACE = ("a", None)


def asked(
    *args: Any, keep: str = "score", place: tuple[Any, ...] = ("a", None), **kw: Any
) -> bytes:
    return CallNames().of(keep, place, args, kw)


DIFFERENT = [
    asked(1),
    asked("1"),
    asked(b"1"),
    asked(True),
    asked(1.0),
    asked(Decimal(1)),
    asked(None),
    asked([1]),
    asked({"1": 1}),
    asked(1, 1),
    asked(x=1),
    asked(y=1),
    asked(1, keep="score-v2"),
    asked(1, place=("b", None)),
    asked(1, place=("a", "window")),
    asked(1, place=(("a", None), None)),
    asked(date(2026, 1, 1)),
    asked(datetime(2026, 1, 1, tzinfo=UTC)),
    asked(UUID(int=1)),
    asked(math.nan),
    asked(2**70),
    asked("\ud800"),
]


def test_what_differs_has_different_names() -> None:
    assert len({*DIFFERENT}) == len(DIFFERENT)


def test_equal_calls_are_numbered() -> None:
    first, second = CallNames(), CallNames()
    made = [first.of("score", PLACE, (text,), {}) for text in "qrqq"]
    assert len(set(made)) == 4
    # Other calls between them do not count.
    again = [second.of("score", PLACE, (text,), {}) for text in "qqq"]
    assert again == [made[0], made[2], made[3]]


def test_names_do_not_change_between_releases() -> None:
    """A query that is updated before a micro-batch is repeated finds its answers."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert asked("text", 1.5, n=(1, None)).hex() == "4cff3ae20a624d4d9d2981085d50b7d8"
    assert asked(at, Decimal("1.5"), 2**70).hex() == "1476a12dd07a18545133dde9ac0443fa"


def test_a_packer_goes_on_after_what_it_cannot_pack() -> None:
    names = CallNames()
    with pytest.raises(TypeError):
        names.of("score", PLACE, ("long text", {1}), {})
    assert names.of("score", PLACE, (1,), {}) == asked(1)
    assert names.of("score", PLACE, (date(2026, 1, 1),), {}) == asked(date(2026, 1, 1))
    assert names.of("score", PLACE, (2,), {}) == asked(2)


def test_ctx_is_left_out_and_keywords_have_no_order() -> None:
    assert asked(CTX, 1, ctx=CTX) == asked(1)
    assert asked(a=1, b=2) == asked(b=2, a=1)


def test_rows_and_members_count_as_their_values() -> None:
    assert asked(Row("a", "x")) == asked(("a", "x"))
    assert asked(Level.LOW) == asked(1)


class Plain:
    pass


@pytest.mark.parametrize("value", [{1}, object(), Plain(), lambda: 1, [Plain()], {"a": {1}}])
def test_a_value_without_stable_bytes_is_refused_with_the_cure(value: Any) -> None:
    with pytest.raises(TypeError, match=r"no stable bytes. Pass plain values") as raised:
        asked("fine", value)
    assert type(value).__qualname__ in str(raised.value)


def test_a_cycle_is_refused() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(TypeError, match="no stable bytes"):
        asked(cycle)


def test_a_key_without_stable_bytes_is_refused() -> None:
    with pytest.raises(TypeError, match="of type tuple has no stable bytes"):
        asked(1, place=(frozenset({1}), None))


async def ask(text: str) -> str:
    return text


def decorated(fn: Any) -> Any:
    retries = 3

    @functools.wraps(fn)
    async def wrapper(*args: Any) -> Any:
        return [await fn(*args) for _ in range(retries)]

    return wrapper


class Scorer:
    async def score(self, text: str) -> str:
        return text

    again = decorated(score)

    async def __call__(self, text: str) -> str:
        return text


def over_functions() -> Any:
    async def inner(text: str) -> str:
        return await ask(await alias(text)) + str(math.floor(1))

    alias = ask
    return inner


@pytest.mark.parametrize(
    "fn", [ask, Scorer().score, Scorer().again, Scorer(), decorated(ask), over_functions()]
)
def test_functions_whose_questions_are_arguments_are_accepted(fn: Any) -> None:
    check_asks_by_arguments("score", fn)


def closures(text: str) -> dict[str, Any]:
    state = Plain()
    return {
        "uses 'text'": lambda: ask(text),
        "uses 'state'": lambda: ask(str(state)),
        "default arguments": lambda t=text: ask(t),
        "arguments of its own": functools.partial(ask, text),
    }


@pytest.mark.parametrize("why", [*closures("x")])
def test_functions_that_hide_a_question_are_refused_with_the_cure(why: str) -> None:
    with pytest.raises(TypeError, match=why) as raised:
        check_asks_by_arguments("score", closures("x")[why])
    assert "Pass what the call asks as arguments" in str(raised.value)
