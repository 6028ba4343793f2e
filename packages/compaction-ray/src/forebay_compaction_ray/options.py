"""The settings of the client, ``spark.forebay.compaction.remote.*``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import attrs

from forebay_compaction_ray.addresses import addresses_of
from forebay_compaction_ray.credentials import Credentials
from forebay_compaction_ray.reloaded_value import ReloadedValue
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.settings import (
    BYTES,
    DURATION,
    LOCATION,
    SettingType,
    one_of,
    option,
    options_from,
    settings_of,
)

PREFIX: Final = "compaction.remote"
KEYS: Final = f"spark.forebay.{PREFIX}."
FALLBACK: Final = "fallback"
FAIL: Final = "fail"


def _addresses(given: object) -> tuple[str, ...]:
    try:
        return addresses_of(",".join(given) if isinstance(given, tuple) else str(given))
    except ConfigurationError as error:
        raise ValueError(given) from error


ADDRESSES: Final = SettingType("a list such as ip:port,ip:port", _addresses, ",".join)
"""A tuple of ``host:port``."""


def client_credentials(
    token_file: str | None = None,
    ca: str | None = None,
    certificate: str | None = None,
    key: str | None = None,
) -> ReloadedValue[Credentials]:
    """Return a reader of the files' current content.

    Raises `ConfigurationError` for unusable ones.
    """
    current = ReloadedValue(partial(Credentials.of, token_file, ca, certificate, key), 0.0)
    if certificate is not None and ca is None:
        raise ConfigurationError("a certificate is sent over TLS only: name the CA too")
    return current


@attrs.frozen(kw_only=True)
class RemoteOptions:
    """The settings of one client; `SETTINGS` declares those that users can set."""

    addresses: tuple[str, ...] = option(
        ADDRESSES, None, "The gateways to send compactions to.", name="address"
    )
    request_timeout_s: float = option(
        DURATION,
        "300s",
        "Longest time from the submission of a compaction to its end.",
        name="request.timeout",
    )
    request_retries: int = option(
        int,
        2,
        "Number of times that a compaction that a worker did not finish is tried again; with "
        "`fail`, more often until `queue-timeout` is over.",
        minimum=0,
        name="request.retries",
    )
    failure_strategy: str = option(
        one_of(FALLBACK, FAIL),
        FALLBACK,
        "When no worker compacts: compact in the job itself, or fail the task.",
        name="request.failure-strategy",
    )
    queue_timeout_s: float = option(
        DURATION, "30s", "Longest wait for a worker, or for a gateway that takes the compaction."
    )
    min_bytes: int = option(BYTES, "8m", "Compactions with less input stay in the job.", minimum=0)
    storage: str = option(str, "default", "The gateway's name of the state directory.")
    token_file: str | None = option(
        LOCATION, None, "File with the gateway's token, on every executor."
    )
    tls_ca: str | None = option(LOCATION, None, "PEM file: CA of the gateway's certificate.")
    tls_cert: str | None = option(
        LOCATION, None, "PEM file: the client's certificate, for mutual TLS."
    )
    tls_key: str | None = option(LOCATION, None, "PEM file: the key of tls-cert.")
    security: Callable[[], Credentials] = attrs.field()
    """Returns the credentials; by default, what the files hold at any time."""

    @security.default
    def _in_files(self) -> Callable[[], Credentials]:
        return client_credentials(self.token_file, self.tls_ca, self.tls_cert, self.tls_key)

    @property
    def fall_back(self) -> bool:
        """Whether jobs that no gateway takes are compacted here; otherwise the task fails."""
        return self.failure_strategy == FALLBACK

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> RemoteOptions:
        """Resolve the ``given`` settings, with defaults for the others.

        Raises `ConfigurationError`, also for a file that cannot be read.
        """
        if unknown := sorted(given.keys() - SETTINGS.keys()):
            raise ConfigurationError(f"the compaction service 'ray' has no settings {unknown}")
        value = {
            name: SETTINGS[name].value_of(text, key=f"{KEYS}{name}")
            for name, text in given.items()
            if text is not None
        }
        if "address" not in value:
            raise ConfigurationError(f"compaction.service=ray needs {KEYS}address")
        return options_from(cls, value)


SETTINGS: Final = settings_of(RemoteOptions)
"""Name → declaration, as `CompactionService.options` expects it."""
