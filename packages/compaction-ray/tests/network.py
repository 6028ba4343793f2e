"""A bad way to a server: a TCP proxy that delays, freezes, cuts or replaces what passes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading

PATIENCE_S = 100.0
_CHUNK = 65536


class Way:
    """Accepts connections at ``address`` and forwards them to a target, as well as it can."""

    def __init__(self, target):
        self._target = target.rpartition(":")[::2]
        self.delay_s = 0.0
        """Seconds that every chunk takes, in each direction."""
        self.new = "pass"
        """The fate of a new connection: `pass`, `close`, `hold` or `garbage`."""
        self.bytes_up = None
        """A connection is cut after this many bytes to the target; ``None`` means never."""
        self.accepted = 0
        self._writers = set()
        self._tasks = set()
        """Strong references: the loop has weak ones, and what is frozen has no other."""
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._up.wait(PATIENCE_S)

    def freeze(self):
        """Forward nothing more on the connections that are open; new ones work."""
        self._on_loop(self._freeze)

    def cut(self):
        """Break all connections."""
        self._on_loop(self._cut)

    def close(self):
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(PATIENCE_S)

    def _on_loop(self, what):
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (what(), done.set()))
        assert done.wait(PATIENCE_S)

    def _freeze(self):
        frozen, self._thawed = self._thawed, asyncio.Event()
        self._thawed.set()
        frozen.clear()

    def _cut(self):
        for writer in list(self._writers):
            writer.transport.abort()

    def _run(self):
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self):
        self._end = asyncio.Event()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._up.set()
        await self._end.wait()
        self._cut()
        server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader, writer):
        self.accepted += 1
        self._writers.add(writer)
        self._tasks.add(asyncio.current_task())
        try:
            if self.new == "garbage":
                writer.write(os.urandom(400))
            elif self.new == "hold":
                await reader.read()
            elif self.new == "pass":
                await self._forward(reader, writer)
        except OSError:
            pass  # cut, or refused by the target
        finally:
            self._tasks.discard(asyncio.current_task())
            self._writers.discard(writer)
            writer.close()

    async def _forward(self, reader, writer):
        thawed = self._thawed
        to_reader, to_writer = await asyncio.open_connection(*self._target)
        self._writers.add(to_writer)
        pumps = [
            asyncio.create_task(self._pump(reader, to_writer, thawed, self.bytes_up)),
            asyncio.create_task(self._pump(to_reader, writer, thawed, None)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._writers.discard(to_writer)
            to_writer.close()

    async def _pump(self, reader, writer, thawed, most):
        sent = 0
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                await asyncio.sleep(self.delay_s)
                await thawed.wait()
                if most is not None and sent + len(data) > most:
                    writer.write(data[: most - sent])
                    await writer.drain()
                    return
                writer.write(data)
                sent += len(data)


@contextlib.contextmanager
def way_to(target):
    way = Way(target)
    try:
        yield way
    finally:
        way.close()
