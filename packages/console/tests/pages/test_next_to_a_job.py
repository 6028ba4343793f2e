"""Consoles with many viewers next to a job: neither holds the other up."""

from __future__ import annotations

import threading
import time

import pytest

from forebay_state_api.storage.opening import open_storage
from forebay_state_processor.observing import stored_operators
from forebay_state_processor.observing.listing import list_operator

pytestmark = pytest.mark.long

HEAP = "/operators/clicks/visits"
PATHS = ("/", HEAP, f"{HEAP}/groups", f"{HEAP}/files", "/metrics")
BATCHES = 5


class Crowd:
    """Viewers of one console who ask again and again until they may go."""

    def __init__(self, console, viewers: int):
        self.statuses: list[int] = []
        self._console = console
        self._go = threading.Event()
        self._asked = threading.Semaphore(0)
        self._threads = [threading.Thread(target=self._look) for _ in range(viewers)]

    def come(self) -> None:
        """Begin, and wait until each viewer has seen a page."""
        for thread in self._threads:
            thread.start()
        for _ in self._threads:
            assert self._asked.acquire(timeout=100)

    def leave(self) -> None:
        self._go.set()
        for thread in self._threads:
            thread.join(100)

    def _look(self) -> None:
        viewer = self._console.viewer()
        while not self._go.is_set():
            for path in PATHS:
                self.statuses.append(viewer.get(path).status_code)
            self._asked.release()


def wait_until_shown(console, text: str) -> None:
    """Ask for the operator's page until it has ``text``: after a slow listing a console rests."""
    given_up = time.monotonic() + 100
    while text not in console.page(HEAP):
        assert time.monotonic() < given_up


def test_crowds_before_two_consoles_hold_no_job_up(tmp_path, new_console, new_job):
    job = new_job(tmp_path)
    job.run(1)
    shown = [new_console(tmp_path, ttl_s=0) for _ in range(2)]
    crowds = [Crowd(console, viewers=2) for console in shown]
    for crowd in crowds:
        crowd.come()
    try:
        job.run(BATCHES - 1)
    finally:
        for crowd in crowds:
            crowd.leave()
    (operator,) = stored_operators(root := open_storage(tmp_path))
    timeline = list_operator(operator.storage(root)).timeline
    assert [one.version for one in timeline.versions] == list(range(BATCHES, 0, -1))
    assert all(one.count("rows_in") == 80 for one in timeline.versions)
    for console, crowd in zip(shown, crowds, strict=True):
        assert set(crowd.statuses) == {200}
        made = console.counts.by_kind()
        assert (made["put"], made["delete"]) == (0, 0), "a console only reads"
        wait_until_shown(console, f"Versions 1 to {BATCHES}<")
