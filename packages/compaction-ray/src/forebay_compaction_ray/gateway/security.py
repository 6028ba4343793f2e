"""Access to a gateway: tokens, certificates, interfaces, and the files that hold them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs
import grpc

from forebay_compaction_ray.options import read_bytes, read_tokens
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.settings import LOCATION, SettingType, option

_log = logging.getLogger(__name__)

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
"""Interfaces that need no token."""
REREAD_S: Final = 1.0
"""Maximum age, in seconds, of the content of the files that a gateway uses."""


@attrs.frozen(kw_only=True)
class ServerSecurity:
    """Controls access to a gateway."""

    tokens: tuple[str, ...] = attrs.field(default=(), repr=False)
    """Each of them admits; two are in use while clients change from one to the other."""
    admin_tokens: tuple[str, ...] = attrs.field(default=(), repr=False)
    """For `Scale`, `Drain` and `Stop`; without them, ``tokens`` admit to these too."""
    certificate: bytes | None = attrs.field(default=None, repr=False)
    """PEM; enables TLS."""
    key: bytes | None = attrs.field(default=None, repr=False)
    client_ca: bytes | None = attrs.field(default=None, repr=False)
    """PEM; if set, clients must present a certificate that this CA signed."""

    def check(self, host: str) -> None:
        """Raise `ConfigurationError` if a network could use the gateway, or TLS is incomplete."""
        if host not in LOOPBACK and not self.tokens:
            raise ConfigurationError(
                f"the gateway would listen on {host} for everyone: pass --token-file, or keep to "
                "--host 127.0.0.1"
            )
        if (self.certificate is None) != (self.key is None):
            raise ConfigurationError("TLS needs a certificate and its key")
        if self.client_ca is not None and self.certificate is None:
            raise ConfigurationError("clients' certificates can be required with TLS only")


def _absolute(given: object) -> str:
    return str(Path(LOCATION.accept(given)).expanduser().absolute())


FILE: Final = SettingType("a path", _absolute)
"""The absolute path of a file: the gateway has another working directory."""


@attrs.frozen(kw_only=True)
class SecurityFiles:
    """Paths of the files with tokens, certificates and keys, on the gateway's node."""

    token_file: str | None = option(FILE, None, "File with the tokens that admit clients.")
    admin_token_file: str | None = option(
        FILE, None, "File with the tokens for scale, drain, stop."
    )
    tls_cert: str | None = option(FILE, None, "PEM file; enables TLS.")
    tls_key: str | None = option(FILE, None, "PEM file.")
    tls_client_ca: str | None = option(FILE, None, "PEM file; enables mutual TLS.")

    def read(self) -> ServerSecurity:
        """Read the files; raises `ConfigurationError` for one that cannot be used."""
        return ServerSecurity(
            tokens=read_tokens(self.token_file),
            admin_tokens=read_tokens(self.admin_token_file),
            certificate=read_bytes(self.tls_cert),
            key=read_bytes(self.tls_key),
            client_ca=read_bytes(self.tls_client_ca),
        )


class CurrentSecurity:
    """Returns the current content of the files. Called on any thread.

    They are read again when the last reading is `REREAD_S` old. While one cannot be used, as in the
    middle of a change, the last content is in force.
    """

    def __init__(
        self, read: Callable[[], ServerSecurity], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Read the files; raises `ConfigurationError`."""
        self._read: Final = read
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._known, self._read_s, self._complaint = read(), clock(), ""

    def __call__(self) -> ServerSecurity:
        """Return the tokens and certificates in force."""
        with self._lock:
            if (now := self._clock()) - self._read_s >= REREAD_S:
                self._read_s = now
                self._read_again()
            return self._known

    def _read_again(self) -> None:
        complaint = ""
        try:
            self._known = self._read()
        except ConfigurationError as error:
            complaint = str(error)
        if complaint and complaint != self._complaint:
            _log.warning("the last tokens and certificates stay in force: %s", complaint)
        self._complaint = complaint


def credentials(security: Callable[[], ServerSecurity]) -> grpc.ServerCredentials | None:
    """Return credentials for gRPC, of which each new connection asks ``security``.

    Returns ``None`` if there is no certificate now: TLS is on or off for a server's life.
    """
    now = security()
    if now.certificate is None:
        return None
    return grpc.dynamic_ssl_server_credentials(
        _configuration(now), lambda: _configuration(security()), now.client_ca is not None
    )


def _configuration(security: ServerSecurity) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(security.key, security.certificate)], root_certificates=security.client_ca
    )
