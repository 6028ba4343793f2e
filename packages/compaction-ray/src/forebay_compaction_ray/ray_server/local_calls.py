"""Jobs of workers on the gateway's own node: a frame each way over a socket of the loopback.

A call through Ray costs one to two milliseconds, however small the job. Only jobs take this way;
workers are begun, pinged, aborted and killed through Ray, and those of other nodes get their jobs
through it too. A worker connects once for each of its slots, and shows a secret that came by Ray;
it is lost, as far as a job is concerned, when its connection ends.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import socket
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import BinaryIO, Final

import attrs

from forebay_compaction_ray.gateway.pool import WorkerLostError
from forebay_compaction_ray.wire import MESSAGE_BYTES, MalformedMessageError, pack, unpack
from forebay_state_api.errors import ForebayError

_log = logging.getLogger(__name__)

_HOST: Final = "127.0.0.1"
_LENGTH_BYTES: Final = 4
_GREETING_BYTES: Final = 1024
_GREETING_S: Final = 10.0


@attrs.frozen
class LocalAddress:
    """Where workers of a node connect."""

    node: str
    """Ray's id of the node; elsewhere the address means nothing."""
    port: int
    secret: bytes = attrs.field(repr=False)


class LocalCalls:
    """The gateway's side. For its event loop only."""

    def __init__(self) -> None:
        """Listen nowhere: see `start`."""
        self._secret: Final = secrets.token_bytes(32)
        self._idle: Final[defaultdict[str, list[_Connection]]] = defaultdict(list)
        self._server: asyncio.Server | None = None

    async def start(self, node: str) -> LocalAddress:
        """Listen on a port that the system chooses."""
        self._server = await asyncio.start_server(self._greet, _HOST, 0)
        port = int(self._server.sockets[0].getsockname()[1])
        return LocalAddress(node, port, self._secret)

    async def ask(self, worker: str, job: bytes) -> bytes | None:
        """Have a job done; ``None`` if the worker has no connection that is free.

        Raises `WorkerLostError` when the connection ends before the answer, and
        `MalformedMessageError` for an answer that is too long.
        """
        connection = self._free_connection(worker)
        if connection is None:
            return None
        try:
            answer = await connection.ask(job)
        except BaseException:
            connection.close()
            raise
        self._idle[worker].append(connection)
        return answer

    def forget(self, worker: str) -> None:
        """Give up the connections of a worker that is killed."""
        for connection in self._idle.pop(worker, ()):
            connection.close()

    def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
        for worker in list(self._idle):
            self.forget(worker)

    def _free_connection(self, worker: str) -> _Connection | None:
        idle = self._idle[worker]
        while idle:
            connection = idle.pop()
            if connection.alive:
                return connection
            connection.close()
        return None

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(reader, writer)
        try:
            async with asyncio.timeout(_GREETING_S):
                greeting = unpack(await connection.receive(_GREETING_BYTES))
        except (OSError, EOFError, ForebayError) as error:
            _log.warning("a connection that is none of a worker: %r", error)
            connection.close()
            return
        secret, worker = greeting.get("secret"), str(greeting.get("worker"))
        if isinstance(secret, bytes) and hmac.compare_digest(secret, self._secret):
            self._idle[worker].append(connection)
        else:
            _log.warning("a connection as worker %r without the secret", worker)
            connection.close()


class _Connection:
    """One of a worker's connections: a job at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader: Final = reader
        self._writer: Final = writer

    @property
    def alive(self) -> bool:
        """Whether the other side is not known to have ended."""
        return not self._reader.at_eof() and not self._writer.is_closing()

    async def ask(self, job: bytes) -> bytes:
        try:
            self._writer.write(_frame(job))
            await self._writer.drain()
            return await self.receive(MESSAGE_BYTES)
        except (OSError, EOFError) as error:
            raise WorkerLostError(f"its connection ended: {error!r}") from error

    async def receive(self, limit: int) -> bytes:
        header = await self._reader.readexactly(_LENGTH_BYTES)
        return await self._reader.readexactly(_length(header, limit))

    def close(self) -> None:
        self._writer.close()


def answer_calls(
    address: LocalAddress, worker: str, run: Callable[[bytes], bytes], connections: int
) -> None:
    """The worker's side: do jobs in so many threads, until the gateway ends.

    A thread that cannot connect ends too: the jobs that it would have done come through Ray.
    """
    for number in range(connections):
        threading.Thread(
            target=_answer,
            args=(address, worker, run),
            name=f"forebay-jobs-{number}",
            daemon=True,
        ).start()


def _answer(address: LocalAddress, worker: str, run: Callable[[bytes], bytes]) -> None:
    try:
        with socket.create_connection((_HOST, address.port), timeout=_GREETING_S) as connection:
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(_frame(pack({"worker": worker, "secret": address.secret})))
            with connection.makefile("rb") as incoming:
                while (job := _received(incoming)) is not None:
                    connection.sendall(_frame(run(job)))
    except (OSError, MalformedMessageError) as error:
        _log.info("worker %s takes no jobs over port %d: %r", worker, address.port, error)


def _received(incoming: BinaryIO) -> bytes | None:
    """The next job; ``None`` at the end."""
    header = incoming.read(_LENGTH_BYTES)
    if len(header) < _LENGTH_BYTES:
        return None
    length = _length(header, MESSAGE_BYTES)
    job = incoming.read(length)
    return job if len(job) == length else None


def _frame(data: bytes) -> bytes:
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


def _length(header: bytes, limit: int) -> int:
    length = int.from_bytes(header, "big")
    if length > limit:
        raise MalformedMessageError(f"a frame of {length} bytes, at most {limit}")
    return length
