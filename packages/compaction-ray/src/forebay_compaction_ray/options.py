"""The settings of the client, ``spark.forebay.compaction.remote.*``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from forebay_compaction_ray.addresses import addresses_of
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.settings import BYTES, DURATION, LOCATION, Setting, SettingType, one_of

PREFIX: Final = "compaction.remote"
FALLBACK: Final = "fallback"
FAIL: Final = "fail"
RESULT, FOOTER, FULL = "result", "footer", "full"


def _addresses(given: object) -> tuple[str, ...]:
    try:
        return addresses_of(",".join(given) if isinstance(given, tuple) else str(given))
    except ConfigurationError as error:
        raise ValueError(given) from error


ADDRESSES: Final = SettingType("a list such as ip:port,ip:port", _addresses, ",".join)
"""A tuple of ``host:port``."""

SETTINGS: Final[Mapping[str, Setting]] = {
    setting.name: setting
    for setting in (
        Setting("address", ADDRESSES, None, "The gateways to send compactions to."),
        Setting(
            "request.timeout",
            DURATION,
            "300s",
            "Longest time from the submission of a compaction to its end.",
        ),
        Setting(
            "request.retries",
            int,
            2,
            "How often a compaction that failed is tried again.",
            minimum=0,
        ),
        Setting(
            "request.failure-strategy",
            one_of(FALLBACK, FAIL),
            FALLBACK,
            "When the retries are used up: compact in the job itself, or fail the task.",
        ),
        Setting("connect-timeout", DURATION, "2s", "Longest wait for a gateway's answer."),
        Setting(
            "queue-timeout", DURATION, "30s", "Longest wait in queues before compacting locally."
        ),
        Setting(
            "min-bytes", BYTES, "8m", "Compactions with less input stay in the job.", minimum=0
        ),
        Setting("max-inflight", int, 4, "Compactions of one process at once.", minimum=1),
        Setting(
            "verify",
            one_of(RESULT, FOOTER, FULL),
            FOOTER,
            "What is read of outputs before they are installed: nothing, footers, or all of it.",
        ),
        Setting("storage", str, "default", "The gateway's name of the state directory."),
        Setting("token-file", LOCATION, None, "File with the gateway's token, on every executor."),
        Setting("tls-ca", LOCATION, None, "PEM file: who signed the gateway's certificate."),
        Setting("tls-cert", LOCATION, None, "PEM file: this side's certificate, for mutual TLS."),
        Setting("tls-key", LOCATION, None, "PEM file: the key of tls-cert."),
    )
}
"""Name → declaration, as `CompactionService.options` wants it."""


@attrs.frozen(kw_only=True)
class ClientSecurity:
    """How this side shows who it is, and learns who the other is."""

    token: str | None = attrs.field(default=None, repr=False)
    ca: bytes | None = attrs.field(default=None, repr=False)
    """PEM; with it, TLS."""
    certificate: bytes | None = attrs.field(default=None, repr=False)
    key: bytes | None = attrs.field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        *,
        token_file: str | None = None,
        ca: str | None = None,
        certificate: str | None = None,
        key: str | None = None,
    ) -> ClientSecurity:
        """Read the files; raises `ConfigurationError` for one that cannot be read."""
        if (certificate is None) != (key is None):
            raise ConfigurationError("a certificate needs its key, and a key its certificate")
        if certificate is not None and ca is None:
            raise ConfigurationError("a certificate is shown over TLS only: name the CA too")
        return cls(
            token=None if token_file is None else read_token(token_file),
            ca=read_bytes(ca),
            certificate=read_bytes(certificate),
            key=read_bytes(key),
        )


@attrs.frozen(kw_only=True)
class RemoteOptions:
    """The settings in force for one client."""

    addresses: tuple[str, ...]
    """At least one ``host:port``."""
    request_timeout_s: float = 300.0
    request_retries: int = 2
    fall_back: bool = True
    """Else the task fails."""
    connect_timeout_s: float = 2.0
    queue_timeout_s: float = 30.0
    min_bytes: int = 8 * 1024 * 1024
    max_inflight: int = 4
    verify: str = FOOTER
    storage: str = "default"
    security: ClientSecurity = attrs.field(factory=ClientSecurity)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> RemoteOptions:
        """Take what is given, and the default of what is not; reads the files that are named.

        Raises `ConfigurationError`.
        """
        if unknown := sorted(given.keys() - SETTINGS.keys()):
            raise ConfigurationError(f"the compaction service 'ray' has no settings {unknown}")
        value = {name: _value(setting, given.get(name)) for name, setting in SETTINGS.items()}
        if value["address"] is None:
            raise ConfigurationError(f"compaction.service=ray needs spark.forebay.{PREFIX}.address")
        return cls(
            addresses=value["address"],
            request_timeout_s=value["request.timeout"],
            request_retries=value["request.retries"],
            fall_back=value["request.failure-strategy"] == FALLBACK,
            connect_timeout_s=value["connect-timeout"],
            queue_timeout_s=value["queue-timeout"],
            min_bytes=value["min-bytes"],
            max_inflight=value["max-inflight"],
            verify=value["verify"],
            storage=value["storage"],
            security=ClientSecurity.of(
                token_file=value["token-file"],
                ca=value["tls-ca"],
                certificate=value["tls-cert"],
                key=value["tls-key"],
            ),
        )


def _value(setting: Setting, given: object) -> Any:
    if given is None:
        return setting.default_value()
    return setting.value_of(given, key=f"spark.forebay.{PREFIX}.{setting.name}")


def read_token(path: str) -> str:
    """The token in a file, without white space around it."""
    token = (read_bytes(path) or b"").decode("utf-8", "replace").strip()
    if not token or any(ord(c) < 0x21 or ord(c) > 0x7E for c in token):  # noqa: PLR2004 - ASCII
        raise ConfigurationError(f"{path} holds no token: one line of printable ASCII")
    return token


def read_bytes(path: str | None) -> bytes | None:
    """The content of a file that a setting names."""
    if path is None:
        return None
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
