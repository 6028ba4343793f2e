"""The event loop of a worker process: one thread that lives as long as the process.

Clients belong to the loop on which they were opened and must outlive tasks, so the loop must too.
Between tasks it closes unused clients.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from forebay_state_api.errors import NoThreadError
from forebay_state_api.threads import PerProcess, new_loop, start_thread

T = TypeVar("T")


class ProcessLoop:
    """A thread that runs an event loop: uvloop's if uvloop is installed."""

    def __init__(self) -> None:
        self.loop = new_loop(_fastest_loop)
        self._thread = threading.Thread(target=self._run, name="forebay-calls", daemon=True)
        try:
            start_thread(self._thread)
        except NoThreadError:
            self.loop.close()
            raise

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop; may be called from any other thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def close(self) -> None:
        """Stop the loop and end the thread. Only tests do this."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


process_loop: Final = PerProcess(ProcessLoop)
"""Returns the loop of this process, started; raises `NoThreadError` if it can have no thread."""


def _fastest_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
