"""Reads the input ahead on a thread, so that waiting for input does not block the calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from forebay_spark_runtime.waiting.arrow_in import Segmenter
from forebay_spark_runtime.waiting.input_queue import InputQueue
from forebay_state_api.threads import start_thread

AHEAD_SEGMENTS: Final = 4
"""The number of segments, of about a thousand rows each, that are read ahead."""


class InputReader:
    """Pushes the segments of a task's batches into its input queue."""

    def __init__(
        self,
        batches: Iterable[Any],
        segmenter: Segmenter,
        input_queue: InputQueue,
        loop: asyncio.AbstractEventLoop,
        failed: Callable[[BaseException], None],
    ) -> None:
        """Prepare the reader; ``failed`` is called on the loop with an error of reading."""
        self._batches = batches
        self._cutter = segmenter
        self._feed = input_queue
        self._loop = loop
        self._failed = failed
        self._room = threading.Semaphore(AHEAD_SEGMENTS)
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="forebay-input", daemon=True)

    def start(self) -> None:
        """Start reading; raises `NoThreadError` if the process cannot have another thread now."""
        start_thread(self._thread)

    def make_room(self) -> None:
        """Allow one more segment, because one was taken; called on the loop."""
        self._room.release()

    def stop(self) -> None:
        """Stop reading; a read in progress still completes."""
        self._stopped = True
        self._room.release()

    def _run(self) -> None:
        try:
            for batch in self._batches:
                for segment in self._cutter.segments(batch):
                    self._room.acquire()
                    if self._stopped:
                        return
                    self._loop.call_soon_threadsafe(self._feed.push, segment)
            self._loop.call_soon_threadsafe(self._feed.end)
        except BaseException as error:  # noqa: BLE001 - it is the task's error
            if not self._stopped:
                self._loop.call_soon_threadsafe(self._failed, error)
