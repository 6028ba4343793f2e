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


@attrs.frozen
class StorageOptions:
    """Settings of one storage, apart by whom they are for."""

    retry_budget_s: float
    timeouts: Mapping[str, float]
    """``request-timeout`` and ``connect-timeout`` where given, in seconds."""
    named: Mapping[str, str]
    """``endpoint`` and ``region`` where given."""
    others: Mapping[str, Any]
    """By the store's own names."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> StorageOptions:
        """Tell them apart."""
        others = dict(given)
        budget_s = float(others.pop("retry-budget", DEFAULT_BUDGET_S))
        timeouts: dict[str, float] = {
            name: float(others.pop(name))
            for name in ("request-timeout", "connect-timeout")
            if name in others
        }
        named = {name: str(others.pop(name)) for name in _NAMES if name in others}
        return cls(budget_s, timeouts, named, others)

    @property
    def of_a_network(self) -> Mapping[str, Any]:
        """All that means nothing for a directory."""
        return {**self.timeouts, **self.named, **self.others}

    def config(self, url: str, scheme: str) -> dict[str, Any]:
        """What obstore's store is configured with."""
        family = _FAMILIES[scheme]
        config = dict(self.others)
        for name, value in self.named.items():
            if family not in _NAMES[name]:
                message = f"spark.forebay.storage.{name} does not apply to {url}"
                raise ConfigurationError(message)
            config[_NAMES[name][family]] = value
        return config

    def client(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """What obstore's HTTP client is told."""
        names = {"request-timeout": "timeout", "connect-timeout": "connect_timeout"}
        client: dict[str, Any] = {
            names[name]: timedelta(seconds=value) for name, value in self.timeouts.items()
        }
        endpoints = [str(value) for key, value in config.items() if key.endswith("endpoint")]
        if any(endpoint.startswith("http://") for endpoint in endpoints):
            client["allow_http"] = True
        return client

    def retries(self) -> dict[str, Any]:
        """How obstore tries requests again by itself."""
        budget = timedelta(seconds=self.retry_budget_s)
        return {"max_retries": _RETRIES if self.retry_budget_s else 0, "retry_timeout": budget}
