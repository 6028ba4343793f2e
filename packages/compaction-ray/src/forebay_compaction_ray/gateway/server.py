"""The gRPC server of a gateway: messages as bytes, a token, TLS, and a health check."""

from __future__ import annotations

import asyncio
import hmac
import inspect
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from forebay_compaction_ray.credentials import Credentials
from forebay_compaction_ray.gateway.core import GatewayCore
from forebay_compaction_ray.gateway.security import check_exposure, server_credentials
from forebay_compaction_ray.messages import Hello, Message, Submission
from forebay_compaction_ray.protocol import (
    ADMIN_METHODS,
    MESSAGE_BYTES,
    REFUSAL_KEY,
    SERVICE,
    MalformedMessageError,
    RefusedError,
    pack,
    unpack,
)
from forebay_state_api.errors import ConfigurationError

_log = logging.getLogger(__name__)

_ALL_INTERFACES: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - to replace it
_RECORD_S: Final = 5.0
"""Longest wait for the record of an order."""

Handler = Callable[[Mapping[str, Any]], Any]
"""Returns or awaits the answer to a request: a message, a map, or nothing."""


class GatewayServer:
    """Serves one gateway on one port."""

    def __init__(
        self,
        core: GatewayCore,
        security: Callable[[], Credentials],
        record: Callable[..., Awaitable[None]] | None = None,
    ) -> None:
        """``security`` returns the tokens and certificates in force.

        ``record`` is called with each order, such as ``workers=3``, and makes it durable before it
        is carried out.
        """
        self._core: Final = core
        self._security: Final = security
        self._record: Final = record
        self._health: Final = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None
        self._drain_watch: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> str:
        """Listen, and return ``host:port``; port 0 takes a free one.

        Raises `ConfigurationError` if the port is taken.
        """
        check_exposure(self._security(), host)
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", MESSAGE_BYTES),
                ("grpc.so_reuseport", 0),  # else two gateways share a port unnoticed
            ]
        )
        server.add_generic_rpc_handlers((self._methods(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        where = f"{_bracketed(host)}:{port}"
        tls = server_credentials(self._security)
        try:
            if tls is None:
                bound = server.add_insecure_port(where)
            else:
                bound = server.add_secure_port(where, tls)
        except RuntimeError as error:
            raise ConfigurationError(f"cannot listen on {where}: {error}") from error
        await self._health.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
        await server.start()
        self._server = server
        self._drain_watch = asyncio.create_task(self._refuse_health_while_draining())
        return f"{_bracketed(reachable(host))}:{bound}"

    async def close(self, grace_s: float = 1.0) -> None:
        """Answer requests in progress, at most ``grace_s`` seconds, then stop listening."""
        if self._drain_watch is not None:
            self._drain_watch.cancel()
        if self._server is not None:
            await self._health.enter_graceful_shutdown()
            await self._server.stop(grace_s)

    def _methods(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                name: grpc.unary_unary_rpc_method_handler(self._answering(name, handler))
                for name, handler in self._handlers().items()
            },
        )

    def _handlers(self) -> dict[str, Handler]:
        core = self._core
        return {
            "Hello": lambda asked: core.greet(Hello.from_plain(asked)),
            "Submit": lambda asked: core.submit(Submission.from_plain(asked)),
            "Poll": lambda asked: core.poll(_text(asked, "job_id"), _seconds(asked, "wait_s")),
            "Release": lambda asked: core.release(_text(asked, "job_id")),
            "Describe": lambda _: core.describe(),
            "Check": self._check,
            "Scale": self._scale,
            "Drain": lambda _: self._order(draining=True),
            "Stop": lambda _: self._order(stopping=True),
        }

    async def _refuse_health_while_draining(self) -> None:
        await self._core.draining.wait()
        await self._health.enter_graceful_shutdown()

    def _answering(self, name: str, handler: Handler) -> Callable[[bytes, Any], Awaitable[bytes]]:
        async def answer(request: bytes, context: Any) -> bytes:
            try:
                self._authorise(name, context)
                found = handler(unpack(request))
                if inspect.isawaitable(found):
                    found = await found
                return pack(found.to_plain() if isinstance(found, Message) else found or {})
            except RefusedError as refused:
                refusal = refused
            except MalformedMessageError as malformed:
                refusal = RefusedError("malformed", str(malformed))
            except (LookupError, TypeError, ValueError, OverflowError) as fault:
                refusal = RefusedError("malformed", f"{name}: {fault!r}")
            except Exception as fault:  # noqa: BLE001 - a caller must be answered
                _log.exception("%s failed", name)
                refusal = RefusedError("internal", repr(fault))
            metadata = ((REFUSAL_KEY, pack(refusal.to_plain())),)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal.message, metadata)
            raise AssertionError  # abort raises

        return answer

    def _authorise(self, name: str, context: Any) -> None:
        security = self._security()
        allowed = security.tokens + security.admin_tokens
        if name in ADMIN_METHODS and security.admin_tokens:
            allowed = security.admin_tokens
        elif not security.tokens:
            return
        given = dict(context.invocation_metadata() or ()).get("authorization", "")
        if not any(hmac.compare_digest(given.encode(), f"Bearer {t}".encode()) for t in allowed):
            raise RefusedError("token", "the token is missing or wrong: see token-file")

    async def _check(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        storage, worker = _text(request, "storage"), _text(request, "worker")
        return {"found": await self._core.check(storage, worker)}

    async def _scale(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        workers = request["workers"]
        if type(workers) is not int or workers < 0:
            raise RefusedError("malformed", f"{workers!r} workers")
        return await self._order(workers=workers)

    async def _order(self, **order: Any) -> Mapping[str, Any]:
        """Record an order, so that it outlasts the gateway's process, and then carry it out."""
        try:
            async with asyncio.timeout(_RECORD_S):
                if self._record is not None:
                    await self._record(**order)
        except TimeoutError as error:
            raise RefusedError(
                "not_recorded",
                f"the order is not followed: it could not be recorded within {_RECORD_S:g} s, as "
                "the head of the cluster does not answer. Repeat it when the head is back, or "
                "order the opposite: a gateway that restarts may find it",
            ) from error
        self._core.follow(**order)
        return self._core.describe()


def _text(request: Mapping[str, Any], name: str) -> str:
    """Return a field of a request; `TypeError` if it is no text."""
    value = request[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} is {type(value).__name__}, not text")
    return value


def _seconds(request: Mapping[str, Any], name: str) -> float:
    """Return a field of a request, by default 0; `TypeError` if it is no number."""
    value = request.get(name, 0.0)
    if type(value) not in (int, float):
        raise TypeError(f"{name} is {type(value).__name__}, not a number")
    return float(value)


def reachable(host: str) -> str:
    """Return an address of this machine for clients, if ``host`` is a wildcard."""
    if host not in _ALL_INTERFACES:
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it only selects an interface
        except OSError:
            return socket.gethostname()
        return str(probe.getsockname()[0])


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
