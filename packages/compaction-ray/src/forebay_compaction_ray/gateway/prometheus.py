"""Serves the gateway's numbers to Prometheus: one page over HTTP."""

from __future__ import annotations

from typing import Final

from forebay_compaction_ray.gateway.metrics import Metrics
from forebay_state_api.errors import ConfigurationError

_HEAD_BYTES: Final = 16 * 1024
_PATIENCE_S: Final = 10.0


async def serve_metrics(metrics: Metrics, host: str, port: int) -> asyncio.Server:
    """Listen for ``GET /metrics``; raises `ConfigurationError` if the port is taken."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A peer that leaves, is silent (a timeout is an OSError) or sends too much gets no page.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_PATIENCE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_page(metrics, head))
                await writer.drain()
        writer.close()

    try:
        return await asyncio.start_server(answer, host, port, limit=_HEAD_BYTES)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host}:{port}: {error}") from error


def _page(metrics: Metrics, head: bytes) -> bytes:
    found = head.startswith((b"GET /metrics ", b"GET / "))
    status, text = ("200 OK", metrics.to_text()) if found else ("404 Not Found", "")
    body = text.encode()
    lines = (
        f"HTTP/1.1 {status}",
        "Content-Type: text/plain; version=0.0.4; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return "\r\n".join([*lines, "", ""]).encode() + body
