"""Runs the site on a socket, until it is interrupted."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import uvicorn

from forebay_console.connections import LimitedConnection
from forebay_console.pages.access import is_loopback
from forebay_state_api.errors import ConfigurationError

if TYPE_CHECKING:
    from starlette.types import ASGIApp


@attrs.frozen(kw_only=True)
class Listening:
    """The address on which the console listens, and the encryption of its connections."""

    host: str
    port: int
    """0: a free one."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    plain_http: bool = False
    """Whether something else encrypts the connection, such as a proxy."""

    def check(self, token: str | None) -> None:
        """Raise `ConfigurationError` unless a token and encryption protect the console."""
        if (self.tls_cert is None) is not (self.tls_key is None):
            raise ConfigurationError("--tls-cert and --tls-key must be set together")
        if is_loopback(self.host):
            return
        if token is None:
            raise ConfigurationError(
                f"--host {self.host} is not loopback: everyone who reaches it would see the job. "
                "Set --token-file, or use an SSH tunnel to 127.0.0.1"
            )
        if self.tls_cert is None and not self.plain_http:
            raise ConfigurationError(
                f"--host {self.host} is not loopback: the token would be sent unencrypted. Set "
                "--tls-cert and --tls-key, or --plain-http if a proxy encrypts the connection"
            )

    @property
    def behind_tls(self) -> bool:
        """Whether a proxy on another machine encrypts the connection.

        Connections without TLS are refused then.
        """
        return self.plain_http and self.tls_cert is None and not is_loopback(self.host)

    def url(self, port: int) -> str:
        """Return the address for a browser."""
        scheme = "http" if self.tls_cert is None else "https"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{port}/"


def serve(app: ASGIApp, listening: Listening, started: Callable[[str], None]) -> None:
    """Serve ``app`` until SIGINT or SIGTERM; call ``started`` with the address when it listens."""
    bound = _bound(listening)
    try:
        config = uvicorn.Config(
            app,
            http=LimitedConnection,
            log_level="warning",
            access_log=False,
            use_colors=False,
            server_header=False,
            ssl_certfile=listening.tls_cert,
            ssl_keyfile=listening.tls_key,
            lifespan="off",
            timeout_graceful_shutdown=1,
            limit_concurrency=200,
            h11_max_incomplete_event_size=32_768,
        )
        _load(config, listening)
        started(listening.url(bound.getsockname()[1]))
        uvicorn.Server(config).run(sockets=[bound])
    finally:
        bound.close()


def _load(config: uvicorn.Config, listening: Listening) -> None:
    """Read the certificate before anything is announced."""
    try:
        config.load()
    except OSError as error:  # of TLS as well
        raise ConfigurationError(
            f"--tls-cert {listening.tls_cert} and --tls-key {listening.tls_key} cannot be used: "
            f"{error}"
        ) from error


def _bound(listening: Listening) -> socket.socket:
    """Bind before anything is announced: a taken port is an error, not a warning in a log."""
    where = f"{listening.host}:{listening.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            listening.host, listening.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {where}: {error}") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(128)
    except OSError as error:
        bound.close()
        raise ConfigurationError(f"cannot listen on {where}: {error.strerror}") from error
    return bound
