"""The credentials of a client or a gateway, and the files that hold them."""

from __future__ import annotations

from pathlib import Path

import attrs

from forebay_state_api.errors import ConfigurationError


@attrs.frozen(kw_only=True)
class Credentials:
    """The secrets that one side of a connection presents, and the secrets that it accepts."""

    tokens: tuple[str, ...] = attrs.field(default=(), repr=False)
    """A gateway accepts each of them, a client sends the first: tokens change without a gap."""
    admin_tokens: tuple[str, ...] = attrs.field(default=(), repr=False)
    """Tokens for `ADMIN_METHODS`; if there are none, ``tokens`` admit to these methods, too."""
    ca: bytes | None = attrs.field(default=None, repr=False)
    """PEM; the other side must present a certificate that this CA signed."""
    certificate: bytes | None = attrs.field(default=None, repr=False)
    """PEM."""
    key: bytes | None = attrs.field(default=None, repr=False)
    """PEM; the key of ``certificate``."""

    @classmethod
    def of(
        cls,
        token_file: str | None = None,
        ca: str | None = None,
        certificate: str | None = None,
        key: str | None = None,
        admin_token_file: str | None = None,
    ) -> Credentials:
        """Read the files; raises `ConfigurationError` for one that cannot be used."""
        if (certificate is None) != (key is None):
            raise ConfigurationError("a certificate needs its key, and a key its certificate")
        return cls(
            tokens=_tokens(token_file),
            admin_tokens=_tokens(admin_token_file),
            ca=_content(ca),
            certificate=_content(certificate),
            key=_content(key),
        )


def _tokens(path: str | None) -> tuple[str, ...]:
    """Return the tokens in a file, one per line; without a file there are none."""
    if path is None:
        return ()
    lines = (_content(path) or b"").decode("utf-8", "replace").splitlines()
    tokens = tuple(token for line in lines if (token := line.strip()))
    if not tokens or any(not "!" <= character <= "~" for character in "".join(tokens)):
        raise ConfigurationError(f"{path} holds no token: expected one per line, printable ASCII")
    return tokens


def _content(path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
