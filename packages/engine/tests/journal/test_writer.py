"""The writer's thread: when objects are put, what is dropped, and what an end waits for."""

from __future__ import annotations

import threading

import pytest

from forebay_engine.journal import writer as writers
from forebay_engine.journal.answer_objects import stored_answers
from forebay_engine.journal.writer import OBJECT_BYTES, AnswerWriter
from forebay_state_api.errors import NoThreadError, StorageError

NAME = b"n" * 16


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Objects:
    """The objects that were put, which may be awaited, and held back."""

    def __init__(self) -> None:
        self.found: list[int] = []
        self.bytes = 0
        self.is_put = threading.Event()
        self.may_put = threading.Event()
        self.may_put.set()

    def put(self, data: bytes) -> None:
        self.may_put.wait()
        self.found.append(len(stored_answers(data, "object")))
        self.bytes += len(data)
        self.is_put.set()


def test_an_object_is_due_after_a_second_or_a_hundredth_of_the_time() -> None:
    clock, objects = Clock(), Objects()
    writer = AnswerWriter(objects.put, clock)
    assert writer.due_in_s() is None
    objects.may_put.clear()
    writer.add(NAME, b"x")
    assert writer.due_in_s() == 1.0
    clock.now += 0.75
    assert writer.due_in_s() == 0.25
    clock.now += 500
    assert writer.due_in_s() == 0.0
    objects.may_put.set()
    writer.end()
    writer.join()
    assert objects.found == [1]


def test_a_long_batch_has_few_objects() -> None:
    clock = Clock()
    writer = AnswerWriter(Objects().put, clock)
    clock.now += 3_600
    writer.add(NAME, b"x")
    assert writer.due_in_s() == pytest.approx(36)
    writer.end()
    writer.join()


def test_a_full_object_is_put_at_once_and_the_rest_at_the_end() -> None:
    objects = Objects()
    writer = AnswerWriter(objects.put, Clock())  # whose time stands still
    value = bytes(OBJECT_BYTES // 4)
    for _ in range(4):
        writer.add(NAME, value)
    assert objects.is_put.wait(60)
    writer.add(NAME, value)
    writer.end()
    writer.join()
    assert objects.found == [4, 1]
    assert (writer.kept_bytes, writer.dropped) == (objects.bytes, 0)


def test_nothing_is_put_without_answers() -> None:
    objects = Objects()
    writer = AnswerWriter(objects.put)
    writer.end()
    writer.join()
    assert (objects.found, writer.kept_bytes) == ([], 0)


def test_a_full_buffer_drops_and_counts_and_nothing_waits(monkeypatch) -> None:
    monkeypatch.setattr(writers, "MOST_BYTES", 2 * OBJECT_BYTES)
    objects = Objects()
    objects.may_put.clear()
    writer = AnswerWriter(objects.put, Clock())
    value = bytes(OBJECT_BYTES // 2)
    for _ in range(6):
        writer.add(NAME, value)
    assert writer.dropped == 3
    objects.may_put.set()
    writer.end()
    writer.join()
    assert sum(objects.found) == 3


def test_a_failing_storage_drops_and_is_logged_once(caplog) -> None:
    def put(_: bytes) -> None:
        raise StorageError("the disk is full")

    writer = AnswerWriter(put, Clock())
    for _ in range(6):
        writer.add(NAME, bytes(OBJECT_BYTES))
    writer.end()
    writer.join()
    assert (writer.dropped, writer.kept_bytes) == (6, 0)
    assert [record.message for record in caplog.records] == [
        "answers of calls are not kept: the disk is full"
    ]


def test_a_failed_task_waits_for_a_while_only() -> None:
    objects = Objects()
    objects.may_put.clear()
    writer = AnswerWriter(objects.put, Clock())
    writer.add(NAME, b"x")
    writer.end()
    writer.join(0.01)
    assert objects.found == []
    objects.may_put.set()
    writer.join()
    assert objects.found == [1]


def test_without_a_thread_answers_are_put_at_the_end(monkeypatch) -> None:
    def none(_: threading.Thread) -> None:
        raise NoThreadError("no thread")

    monkeypatch.setattr(writers, "start_thread", none)
    objects = Objects()
    writer = AnswerWriter(objects.put, Clock())
    writer.add(NAME, b"x")
    writer.add(NAME, b"y")
    writer.end()
    writer.join()
    assert objects.found == [2]
