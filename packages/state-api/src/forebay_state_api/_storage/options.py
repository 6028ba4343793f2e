"""``spark.forebay.storage.*``: what is Forebay's own, and what goes to the store as it is."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import attrs

from forebay_state_api.errors import ConfigurationError

DEFAULT_BUDGET_S: Final = 30.0
"""How long a request is tried again, unless told otherwise."""
_RETRIES: Final = 1_000
"""More than fit into any budget; the time is what ends them."""
_NAMES: Final = {
    "endpoint": {"s3": "endpoint", "az": "endpoint"},
    "region": {"s3": "region"},
}
"""Our name → the store's own, by family of schemes."""
_FAMILIES: Final = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    "gs": "gs",
    **dict.fromkeys(("az", "adl", "azure", "abfs", "abfss"), "az"),
    **dict.fromkeys(("http", "https"), "http"),
}
CLOUD_SCHEMES: Final = frozenset(_FAMILIES)
"""URL schemes that obstore opens over a network."""
_PREFIXES: Final = {"s3": "aws_", "gs": "google_", "az": "azure_", "http": ""}
"""How each store's own names may begin, those of its HTTP client among them."""
CLIENT_OPTIONS: Final = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "default_headers",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_max_frame_size",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "read_timeout",
        "root_certificate",
        "timeout",
        "user_agent",
    }
)
"""Options of obstore's HTTP client, the same for every store."""
_TIMEOUTS: Final = {"request-timeout": "timeout", "connect-timeout": "connect_timeout"}
"""Our name → the client's own."""


@attrs.frozen
class StorageOptions:
    """Settings of one storage, apart by whom they are for."""

    retry_budget_s: float
    timeouts: Mapping[str, float]
    """``request-timeout`` and ``connect-timeout`` where given, in seconds."""
    named: Mapping[str, str]
    """``endpoint`` and ``region`` where given."""
    others: Mapping[str, Any]
    """By the names of the store and of its HTTP client."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> StorageOptions:
        """Tell them apart."""
        others = dict(given)
        budget_s = float(others.pop("retry-budget", DEFAULT_BUDGET_S))
        timeouts = {name: float(others.pop(name)) for name in _TIMEOUTS if name in others}
        named = {name: str(others.pop(name)) for name in _NAMES if name in others}
        return cls(budget_s, timeouts, named, others)

    @property
    def of_a_network(self) -> Mapping[str, Any]:
        """All that means nothing for a directory."""
        return {**self.timeouts, **self.named, **self.others}

    def without(self, name: str) -> StorageOptions:
        """Return all but one."""
        kept = [{n: v for n, v in part.items() if n != name} for part in self._parts]
        return StorageOptions(self.retry_budget_s, *kept)

    def config(self, url: str, scheme: str) -> dict[str, Any]:
        """Return the configuration of obstore's store."""
        family = _FAMILIES[scheme]
        config = {n: v for n, v in self.others.items() if _client_name(n, family) is None}
        for name, value in self.named.items():
            if family not in _NAMES[name]:
                message = f"spark.forebay.storage.{name} does not apply to {url}"
                raise ConfigurationError(message)
            config[_NAMES[name][family]] = value
        return config

    def client(self, scheme: str) -> dict[str, Any]:
        """Return the options of obstore's HTTP client."""
        family = _FAMILIES[scheme]
        client: dict[str, Any] = {
            _TIMEOUTS[name]: timedelta(seconds=value) for name, value in self.timeouts.items()
        }
        for name, value in self.others.items():
            if (own := _client_name(name, family)) is None:
                continue
            if own in client:
                message = f"spark.forebay.storage.{name} is given twice, under another name as well"
                raise ConfigurationError(message)
            client[own] = value
        endpoints = [str(v) for n, v in self.of_a_network.items() if n.endswith("endpoint")]
        if any(endpoint.startswith("http://") for endpoint in endpoints):
            client.setdefault("allow_http", True)
        return client

    def retries(self) -> dict[str, Any]:
        """Return how obstore tries requests again by itself."""
        budget = timedelta(seconds=self.retry_budget_s)
        return {"max_retries": _RETRIES if self.retry_budget_s else 0, "retry_timeout": budget}

    @property
    def _parts(self) -> tuple[Mapping[str, Any], ...]:
        return self.timeouts, self.named, self.others


def _client_name(name: str, family: str) -> str | None:
    """Return a client option's own name, and ``None`` for what is an option of the store."""
    own = name.lower().removeprefix(_PREFIXES[family])
    return own if own in CLIENT_OPTIONS else None
