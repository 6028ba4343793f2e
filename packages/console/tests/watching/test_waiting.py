"""A storage that waits gets several requests at once, one that does not wait gets one."""

from __future__ import annotations

import threading

import pytest

from forebay_state_api.storage.forwarding import ForwardingStorage
from forebay_state_api.storage.opening import open_storage

pytestmark = pytest.mark.usefixtures("no_rest")


class Meeting(ForwardingStorage):
    """Answers some requests only when as many as shall meet are there."""

    def __init__(self, inner, operation, parties):
        super().__init__(inner)
        self.waits = True
        self._operation = operation
        self._barrier = threading.Barrier(parties, timeout=10)
        self.failing = []
        """Folders whose requests fail when they have met."""

    def around(self, operation, name, request):
        if self._meets(operation, name):
            self._barrier.wait()
        if any(name.startswith(folder) for folder in self.failing):
            raise RuntimeError("user-7 is not a name")
        return request()

    def _meets(self, operation, name):
        return operation.startswith(self._operation) and name.count("/") > 1


class Threads(ForwardingStorage):
    """Remembers the threads that list and get."""

    def __init__(self, inner):
        super().__init__(inner)
        self.seen = set()

    def around(self, operation, name, request):
        self.seen.add(threading.current_thread().name)
        return request()


def test_manifests_of_a_version_are_read_at_once(state_dir, new_console):
    console = new_console(Meeting(open_storage(state_dir), "get", 3))
    assert "Key groups" in console.page("/operators/clicks/visits/groups")


@pytest.mark.parametrize("path", ["/", "/metrics"])
def test_operators_are_looked_at_at_once(path, state_dir, new_console):
    page = new_console(Meeting(open_storage(state_dir), "list", 2)).page(path)
    assert "visits" in page
    assert "sessions" in page
    assert "not readable" not in page


def test_an_error_leaves_the_others_and_is_logged_once(state_dir, new_console, caplog):
    storage = Meeting(open_storage(state_dir), "list", 2)
    storage.failing.append("clicks/sessions/")
    console = new_console(storage, ttl_s=0)
    for path in ("/", "/metrics", "/"):
        assert "visits" in console.page(path)
    assert console.page("/").count("not readable") == 1
    (logged,) = caplog.records
    assert "user-7 is not a name" in str(logged.exc_info[1])


@pytest.mark.parametrize("path", ["/", "/metrics", "/operators/clicks/visits/groups"])
def test_a_local_directory_is_read_on_the_threads_of_requests(path, state_dir, new_console):
    storage = Threads(open_storage(state_dir))
    assert not storage.waits
    new_console(storage).page(path)
    assert not any(name.startswith("forebay-") for name in storage.seen)
