"""Who may talk to a gateway: tokens, certificates, interfaces."""

from __future__ import annotations

from typing import Final

import attrs
import grpc

from forebay_state_api.errors import ConfigurationError

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
"""Interfaces on which a token may be left out."""


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
            raise ConfigurationError(
                f"the gateway would listen on {host} for everyone: give --token-file, or keep to "
                "--host 127.0.0.1"
            )
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
