"""Access to a gateway: tokens, certificates, interfaces."""

from __future__ import annotations

from typing import Final

import attrs
import grpc

from forebay_state_api.errors import ConfigurationError

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
"""Interfaces that need no token."""


@attrs.frozen(kw_only=True)
class ServerSecurity:
    """Controls access to a gateway."""

    token: str | None = attrs.field(default=None, repr=False)
    admin_token: str | None = attrs.field(default=None, repr=False)
    """For `Scale`, `Drain` and `Stop`; without it, the token admits to these too."""
    certificate: bytes | None = attrs.field(default=None, repr=False)
    """PEM; enables TLS."""
    key: bytes | None = attrs.field(default=None, repr=False)
    client_ca: bytes | None = attrs.field(default=None, repr=False)
    """PEM; if set, clients must present a certificate that this CA signed."""

    def check(self, host: str) -> None:
        """Raise `ConfigurationError` if a network could use the gateway, or TLS is incomplete."""
        if host not in LOOPBACK and self.token is None:
            raise ConfigurationError(
                f"the gateway would listen on {host} for everyone: pass --token-file, or keep to "
                "--host 127.0.0.1"
            )
        if (self.certificate is None) != (self.key is None):
            raise ConfigurationError("TLS needs a certificate and its key")
        if self.client_ca is not None and self.certificate is None:
            raise ConfigurationError("clients' certificates can be required with TLS only")

    def credentials(self) -> grpc.ServerCredentials | None:
        """Return credentials for gRPC; ``None`` without TLS."""
        if self.certificate is None or self.key is None:
            return None
        return grpc.ssl_server_credentials(
            [(self.key, self.certificate)],
            root_certificates=self.client_ca,
            require_client_auth=self.client_ca is not None,
        )
