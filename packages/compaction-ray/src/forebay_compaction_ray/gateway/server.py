"""gRPC in front of a gateway: bytes in, bytes out, a token, TLS, and a health check."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import attrs
import grpc
import grpc.aio

from forebay_compaction_ray.gateway.core import GatewayCore
from forebay_compaction_ray.messages import JobView, Submission
from forebay_compaction_ray.protocol import (
    ADMIN_METHODS,
    MESSAGE_BYTES,
    REFUSAL_KEY,
    SERVICE,
    MalformedMessageError,
    RefusedError,
    pack,
    permanent,
    unpack,
)
from forebay_state_api.contract.compaction_service import CompactionFault
from forebay_state_api.errors import ConfigurationError

_log = logging.getLogger(__name__)

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
"""Interfaces on which a token may be left out."""

_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"
_STATUS: Final = {
    "version": grpc.StatusCode.FAILED_PRECONDITION,
    "unknown_format": grpc.StatusCode.FAILED_PRECONDITION,
    "unknown_storage": grpc.StatusCode.FAILED_PRECONDITION,
    "queue_full": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "client_full": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "draining": grpc.StatusCode.UNAVAILABLE,
    "no_worker": grpc.StatusCode.UNAVAILABLE,
    "superseded": grpc.StatusCode.ABORTED,
    "forgotten": grpc.StatusCode.ABORTED,
    "token": grpc.StatusCode.UNAUTHENTICATED,
}

Handler = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


@attrs.frozen(kw_only=True)
class ServerSecurity:
    """Who may talk to a gateway."""

    token: str | None = attrs.field(default=None, repr=False)
    admin_token: str | None = attrs.field(default=None, repr=False)
    """For `Scale`, `Drain` and `Stop`; the token does where there is none."""
    certificate: bytes | None = attrs.field(default=None, repr=False)
    """PEM; with it, TLS."""
    key: bytes | None = attrs.field(default=None, repr=False)
    client_ca: bytes | None = attrs.field(default=None, repr=False)
    """PEM; with it, clients must show a certificate that it signed."""

    def check(self, host: str) -> None:
        """Raise `ConfigurationError` for what would leave the gateway open to a network."""
        if host not in LOOPBACK and self.token is None:
            message = (
                f"the gateway would listen on {host} for everyone: give --token-file, or keep to "
                "--host 127.0.0.1"
            )
            raise ConfigurationError(message)
        if (self.certificate is None) != (self.key is None):
            raise ConfigurationError("TLS needs a certificate and its key")
        if self.client_ca is not None and self.certificate is None:
            raise ConfigurationError("clients' certificates can be asked for with TLS only")

    def credentials(self) -> grpc.ServerCredentials | None:
        """For gRPC; ``None`` without TLS."""
        if self.certificate is None or self.key is None:
            return None
        return grpc.ssl_server_credentials(
            [(self.key, self.certificate)],
            root_certificates=self.client_ca,
            require_client_auth=self.client_ca is not None,
        )


class GatewayServer:
    """Serves one gateway on one port."""

    def __init__(
        self,
        core: GatewayCore,
        security: ServerSecurity,
        *,
        stop: Callable[[], None],
        message_bytes: int = MESSAGE_BYTES,
    ) -> None:
        """``stop`` is called when an administrator asks for the end of the gateway."""
        self._core: Final = core
        self._security: Final = security
        self._stop: Final = stop
        self._message_bytes: Final = message_bytes
        self._server: grpc.aio.Server | None = None
        self.address = ""
        """``host:port`` once `start` has returned."""

    async def start(self, host: str, port: int) -> str:
        """Listen; port 0 takes a free one. Raises `ConfigurationError` if the port is taken."""
        self._security.check(host)
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", self._message_bytes),
                ("grpc.so_reuseport", 0),  # else two gateways share a port unnoticed
            ]
        )
        server.add_generic_rpc_handlers((self._methods(), self._health()))
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        credentials = self._security.credentials()
        try:
            if credentials is None:
                bound = server.add_insecure_port(where)
            else:
                bound = server.add_secure_port(where, credentials)
        except RuntimeError as error:
            raise ConfigurationError(f"cannot listen on {where}: {error}") from error
        await server.start()
        self._server = server
        self.address = f"{where.rpartition(':')[0]}:{bound}"
        return self.address

    async def close(self, grace_s: float = 1.0) -> None:
        """Answer what is under way, then listen no more."""
        if self._server is not None:
            await self._server.stop(grace_s)

    def _methods(self) -> grpc.GenericRpcHandler:
        handlers: dict[str, Handler] = {
            "Hello": self._hello,
            "Submit": self._submit,
            "Poll": self._poll,
            "Abort": self._abort,
            "Release": self._release,
            "Describe": self._describe,
            "Check": self._check,
            "Scale": self._scale,
            "Drain": self._drain,
            "Stop": self._stop_all,
        }
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                name: grpc.unary_unary_rpc_method_handler(self._answering(name, handler))
                for name, handler in handlers.items()
            },
        )

    def _health(self) -> grpc.GenericRpcHandler:
        async def check(request: bytes, context: Any) -> bytes:
            del request, context
            return _SERVING if self._core.hello()["state"] == "serving" else _NOT_SERVING

        handlers = {"Check": grpc.unary_unary_rpc_method_handler(check)}
        return grpc.method_handlers_generic_handler("grpc.health.v1.Health", handlers)

    def _answering(self, name: str, handler: Handler) -> Callable[[bytes, Any], Awaitable[bytes]]:
        async def answer(request: bytes, context: Any) -> bytes:
            try:
                self._authorise(name, context)
                return pack(await handler(unpack(request, limit=self._message_bytes)))
            except RefusedError as refused:
                refusal = refused
            except MalformedMessageError as malformed:
                refusal = permanent("malformed", str(malformed))
            except (KeyError, TypeError, ValueError) as fault:
                refusal = permanent("malformed", f"{name}: {fault!r}")
            except Exception as fault:  # noqa: BLE001 - a caller must be answered
                _log.exception("%s failed", name)
                refusal = RefusedError(CompactionFault.PERMANENT, "internal", repr(fault))
            status = _STATUS.get(refusal.code, grpc.StatusCode.INVALID_ARGUMENT)
            metadata = ((REFUSAL_KEY, pack(refusal.to_plain())),)
            await context.abort(status, refusal.message, metadata)
            raise AssertionError  # abort raises

        return answer

    def _authorise(self, name: str, context: Any) -> None:
        security = self._security
        allowed = [security.token, security.admin_token]
        if name in ADMIN_METHODS and security.admin_token is not None:
            allowed = [security.admin_token]
        elif security.token is None:
            return
        given = dict(context.invocation_metadata() or ()).get("authorization", "")
        if not any(_same(given, f"Bearer {token}") for token in allowed if token is not None):
            raise permanent("token", "the token is missing or wrong: see token-file")

    async def _hello(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        self._core.hear(dict(request.get("events") or {}))
        return self._core.hello()

    async def _submit(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        view = self._core.submit(Submission.from_plain(request))
        if (wait_s := float(request.get("wait_s", 0.0))) > 0 and not view.phase.ended:
            view = await self._core.poll(view.job_id, wait_s)
        return self._told(request, view)

    async def _poll(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        job_id, wait_s = str(request["job_id"]), float(request.get("wait_s", 0.0))
        view = await self._core.poll(job_id, wait_s, own=bool(request.get("forget")))
        return self._told(request, view)

    def _told(self, request: Mapping[str, Any], view: JobView) -> Mapping[str, Any]:
        """The answer; to an owner, who says ``forget``, it is the last one if the job is done."""
        if request.get("forget"):
            self._core.told(view.job_id)
        return view.to_plain()

    async def _abort(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._core.abort(str(request["job_id"])).to_plain()

    async def _release(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        self._core.release(str(request["job_id"]))
        return {}

    async def _describe(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        del request
        return self._core.describe()

    async def _check(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"found": dict(await self._core.check(str(request["storage"])))}

    async def _scale(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        workers = int(request["workers"])
        if workers < 0:
            raise permanent("malformed", f"{workers} workers")
        self._core.scale(workers)
        return self._core.describe()

    async def _drain(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        del request
        self._core.drain()
        return self._core.describe()

    async def _stop_all(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        del request
        self._stop()
        return {}


def _same(given: Any, wanted: str) -> bool:
    text = given if isinstance(given, str) else ""
    return hmac.compare_digest(text.encode(), wanted.encode())
