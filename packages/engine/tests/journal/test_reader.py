"""The reader: one list, the newest attempt first, bounded memory, and damage that is a miss."""

from __future__ import annotations

import uuid

import attrs
import pytest

from forebay_engine.journal.answer_objects import sealed_answers
from forebay_engine.journal.reader import AnswerReader, listed_answers
from forebay_engine.versions.format.layout import AnswersName, answers_folder
from forebay_state_api.errors import StorageError
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing.committing_job import coordinates
from forebay_testing.storage import CountingStorage, Fault, FaultKind, FaultyStorage

OWN = AnswersName.of_attempt(coordinates(3, epoch=2, attempt_id=4), batch_ms=5)


def name(letter: str) -> bytes:
    return letter.encode() * 16


@pytest.fixture
def storage() -> CountingStorage:
    return CountingStorage(MemoryStorage(f"memory://{uuid.uuid4()}"))


def put(storage, made: AnswersName = OWN, /, **answers: bytes) -> None:
    storage.put(made.text(), sealed_answers([(name(k), v) for k, v in answers.items()]))


def loaded(storage, **options) -> AnswerReader:
    reader = AnswerReader(storage, listed_answers(storage, answers_folder(3)), **options)
    reader.load()
    return reader


def test_names_are_parsed_as_they_were_made() -> None:
    again = attrs.evolve(OWN, number=12, range=KeyGroupRange(9, 9))
    assert AnswersName.parse(again.text()) == again
    folder = answers_folder(3)
    for other in ("", "/x", "/5-7-0-2-00000000000000aa-4-0", "/5-0-7-2-aa-4-0"):
        assert AnswersName.parse(f"{folder}{other}") is None
    assert AnswersName.parse(again.text().replace("calls", "other")) is None


def test_others_are_read_by_a_second_load(storage) -> None:
    other = attrs.evolve(OWN, range=KeyGroupRange(9, 9))
    put(storage, a=b"1")
    put(storage, other, a=b"other", b=b"2")
    reader = AnswerReader(storage, [OWN], [other])
    reader.load()
    assert (reader.take(name("b")), reader.is_complete) == (None, False)
    reader.load()
    assert [reader.take(name(k)) for k in "ab"] == [b"1", b"2"]
    assert reader.is_complete


@pytest.mark.parametrize(
    "newer",
    [
        attrs.evolve(OWN, epoch=3, attempt_id=0),
        attrs.evolve(OWN, run_key="f" * 16, attempt_id=0),
        attrs.evolve(OWN, attempt_id=5),
        attrs.evolve(OWN, epoch=10, attempt_id=0),
        attrs.evolve(OWN, attempt_id=10),
    ],
)
def test_the_newest_attempt_wins_also_if_an_older_one_writes_later(storage, newer) -> None:
    put(storage, OWN, a=b"old", b=b"only old")
    put(storage, newer, a=b"new", c=b"only new")
    put(storage, attrs.evolve(OWN, number=1), a=b"late", c=b"late")
    reader = loaded(storage)
    assert [reader.take(name(k)) for k in "abc"] == [b"new", b"only old", b"only new"]


def test_within_an_attempt_the_first_answer_wins(storage) -> None:
    put(storage, attrs.evolve(OWN, number=10), a=b"second")
    put(storage, attrs.evolve(OWN, number=9), a=b"first")
    assert loaded(storage).take(name("a")) == b"first"


def test_an_answer_is_taken_once(storage) -> None:
    put(storage, a=b"1")
    reader = loaded(storage)
    assert (len(reader), reader.take(name("a")), reader.take(name("a"))) == (1, b"1", None)


def test_values_above_the_bound_are_read_again(storage) -> None:
    for number, letter in enumerate("abc"):
        put(storage, attrs.evolve(OWN, number=number), **{letter: letter.encode() * 100})
    storage.reset()
    reader = loaded(storage, held_bytes=100)
    assert [reader.holds(name(k)) for k in "abcd"] == [True, False, False, True]
    assert [reader.take(name(k)) for k in "abc"] == [b"a" * 100, b"b" * 100, b"c" * 100]
    assert [kind for kind, _ in storage.requests] == ["list", *["get"] * 5]


def test_what_is_gone_when_it_is_read_again_is_a_miss(storage) -> None:
    put(storage, a=b"x" * 100)
    reader = loaded(storage, held_bytes=10)
    storage.delete([OWN.text()])
    assert reader.take(name("a")) is None


def test_the_index_is_bounded(storage, caplog) -> None:
    put(storage, a=b"1", b=b"2")
    put(storage, attrs.evolve(OWN, number=1), c=b"3", d=b"4")
    reader = loaded(storage, most_indexed=3)
    assert [reader.take(name(k)) for k in "abcd"] == [b"1", b"2", None, None]
    assert "4 answers are kept of this micro-batch, of which 2 are used" in caplog.text


@pytest.mark.parametrize(
    "damage", [lambda d: d[:-9], lambda d: d[:30] + b"\0" + d[31:], lambda _: b""]
)
def test_damage_is_a_miss_and_logged_once(storage, damage, caplog) -> None:
    put(storage, a=b"1")
    for number in (1, 2):
        made = attrs.evolve(OWN, number=number)
        put(storage, made, b=b"2")
        storage.put(made.text(), damage(storage.get(made.text())))
    reader = loaded(storage)
    assert [reader.take(name(k)) for k in "ab"] == [b"1", None]
    assert len(caplog.records) == 1
    assert "their calls are made again" in caplog.text


def test_a_storage_that_fails_is_an_error_instead_of_calls_made_twice(storage) -> None:
    put(storage, a=b"1")
    faulty = FaultyStorage(storage, Fault(operation="get", kind=FaultKind.BEFORE))
    with pytest.raises(StorageError):
        loaded(faulty)
