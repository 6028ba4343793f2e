"""Values that are read again when they are old, once for all who ask."""

from __future__ import annotations

import threading

import pytest

from forebay_console.watching.refreshed_value import RefreshedValue


class Source:
    """Counts reads; each takes ``takes_s``."""

    def __init__(self):
        self.now_s = 100.0
        self.takes_s = 0.0
        self.reads = 0
        self.error: Exception | None = None

    def read(self) -> int:
        self.reads += 1
        self.now_s += self.takes_s
        if self.error is not None:
            raise self.error
        return self.reads


@pytest.fixture
def source():
    return Source()


@pytest.fixture
def fresh(source):
    return RefreshedValue(source.read, 2.0, lambda: source.now_s)


def test_a_value_is_kept_for_its_time(fresh, source):
    assert [fresh.get(), fresh.get()] == [1, 1]
    source.now_s += 1.9
    assert fresh.get() == 1
    source.now_s += 0.2
    assert fresh.get() == 2


def test_slow_reads_take_a_fifth_of_the_time_at_most(fresh, source):
    source.takes_s = 10.0
    assert fresh.get() == 1
    source.now_s += 39.0
    assert fresh.get() == 1
    source.now_s += 2.0
    assert fresh.get() == 2


def test_an_error_is_shared_as_a_value_is(fresh, source):
    source.error = OSError("gone")
    for _ in range(3):
        with pytest.raises(OSError, match="gone"):
            fresh.get()
    assert source.reads == 1
    source.error = None
    source.now_s += 3.0
    assert fresh.get() == 2


def test_a_shared_error_shows_where_it_came_from_and_not_who_asked_before(fresh, source):
    source.error = OSError("gone")
    for _ in range(3):
        with pytest.raises(OSError, match="gone") as found:
            fresh.get()
        functions = [frame.name for frame in found.traceback]
    assert functions[-1] == "read"
    assert functions.count("get") == 1


def test_those_who_ask_at_once_wait_for_one_read():
    begun, go_on = threading.Event(), threading.Event()
    reads = []

    def read() -> int:
        reads.append(1)
        begun.set()
        assert go_on.wait(100)
        return 7

    fresh = RefreshedValue(read, 60.0)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(fresh.get())) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert begun.wait(100)
    go_on.set()
    for thread in threads:
        thread.join(100)
    assert found == [7, 7, 7, 7]
    assert len(reads) == 1


def test_while_one_reads_again_the_others_get_what_is_known():
    begun, go_on = threading.Event(), threading.Event()
    answers = iter([1, 2])

    def read() -> int:
        answer = next(answers)
        if answer > 1:
            begun.set()
            assert go_on.wait(100)
        return answer

    fresh = RefreshedValue(read, 0.0, lambda: 0.0)
    assert fresh.get() == 1
    found: list[int] = []
    reader = threading.Thread(target=lambda: found.append(fresh.get()))
    reader.start()
    assert begun.wait(100)
    assert fresh.get() == 1
    go_on.set()
    reader.join(100)
    assert found == [2]
