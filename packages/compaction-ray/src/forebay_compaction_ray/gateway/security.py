"""Access to a gateway: tokens, certificates, interfaces, and the files that hold them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs
import grpc

from forebay_compaction_ray.credentials import Credentials
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.settings import LOCATION, SettingType, option

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
"""Interfaces that need no token."""
REREAD_S: Final = 1.0
"""Maximum age, in seconds, of the content of the files that a gateway uses."""


def check_exposure(credentials: Credentials, host: str) -> None:
    """Raise `ConfigurationError` if a network could use the gateway, or TLS is incomplete."""
    if host not in LOOPBACK and not credentials.tokens:
        raise ConfigurationError(
            f"the gateway would listen on {host} for everyone: pass --token-file, or keep to "
            "--host 127.0.0.1"
        )
    if credentials.ca is not None and credentials.certificate is None:
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

    def read(self) -> Credentials:
        """Read the files; raises `ConfigurationError` for one that cannot be used."""
        return Credentials.of(
            self.token_file, self.tls_client_ca, self.tls_cert, self.tls_key, self.admin_token_file
        )


def server_credentials(security: Callable[[], Credentials]) -> grpc.ServerCredentials | None:
    """Return credentials for gRPC, of which each new connection asks ``security``.

    Returns ``None`` if there is no certificate now: TLS is on or off for a server's life.
    """
    now = security()
    if now.certificate is None:
        return None
    return grpc.dynamic_ssl_server_credentials(
        _configuration(now), lambda: _configuration(security()), now.ca is not None
    )


def _configuration(security: Credentials) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(security.key, security.certificate)], root_certificates=security.ca
    )
