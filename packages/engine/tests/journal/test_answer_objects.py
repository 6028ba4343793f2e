"""The bytes of answers: equal values in a first run and in a repetition, damage found."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any, NamedTuple

import msgpack
import pytest

from forebay_engine.journal.answer_objects import (
    AnswerEncoder,
    as_replayed,
    decoded,
    sealed_answers,
    stored_answers,
)
from forebay_state_api.contract.checksummed import seal
from forebay_state_api.errors import CorruptStateError

encoded = AnswerEncoder().encoded
ANSWERS = [(bytes([n]) * 16, encoded("call", {"score": n, "why": "x" * n})) for n in range(5)]


def test_an_object_returns_its_answers() -> None:
    found = stored_answers(sealed_answers(ANSWERS), "calls/1")
    assert found.names == b"".join(name for name, _ in ANSWERS)
    assert list(found.lengths) == [len(value) for _, value in ANSWERS]
    assert found.values == b"".join(value for _, value in ANSWERS)
    assert len(stored_answers(sealed_answers([]), "calls/1")) == 0


def test_every_damage_is_an_error() -> None:
    data = sealed_answers(ANSWERS)
    for at in range(len(data)):
        altered = bytearray(data)
        altered[at] ^= 1
        with pytest.raises(CorruptStateError, match="calls/1"):
            stored_answers(bytes(altered), "calls/1")
        with pytest.raises(CorruptStateError, match="calls/1"):
            stored_answers(data[:at], "calls/1")


@pytest.mark.parametrize(
    "payload",
    [
        {"answers": 2, "names": b"", "lengths": b"", "values": b""},
        {"answers": 1, "names": b"x" * 16, "lengths": b"", "values": b""},
        {"answers": 1, "names": b"x" * 16, "lengths": b"\0\0\0\1", "values": b""},
        {"other": 1},
    ],
)
def test_an_unknown_format_and_what_does_not_add_up_are_errors(payload: Any) -> None:
    with pytest.raises(CorruptStateError, match="calls/1"):
        stored_answers(seal(payload), "calls/1")


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"a": 1, 2: None, ("k", 1): "x"},
        [1, "x"],
        (1, "x"),
        None,
        0.5,
        "text",
        b"bytes",
        {"a": [1, (2, "x")], "b": {"c": None}},
        (1, [2, (3,)]),
        2**80,
        datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2))),
        {"at": datetime(2026, 1, 1, tzinfo=UTC), ("k", 1): 2},
    ],
)
def test_the_first_run_sees_what_a_repetition_sees(answer: Any) -> None:
    data = encoded("call", answer)
    first, again = as_replayed(answer, data), decoded(data)
    assert (first, type(first), repr(first)) == (again, type(again), repr(again))
    assert first == answer


class Pair(NamedTuple):
    a: int


@pytest.mark.parametrize("answer", [object(), Pair(1), {1}, {"a": Pair(1)}, msgpack.Timestamp])
def test_what_cannot_be_kept_is_an_error_with_the_cure(answer: Any) -> None:
    with pytest.raises(TypeError, match=r"call: the answer .* cannot be kept: .* plain values"):
        encoded("call", answer)
