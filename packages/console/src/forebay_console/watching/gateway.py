"""The gateway of remote compaction, asked for its description; needs the extra ``gateway``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import attrs

from forebay_console.watching.refreshed_value import RefreshedValue
from forebay_state_api.errors import ConfigurationError

if TYPE_CHECKING:
    from forebay_compaction_ray.client.gateway import Gateway

_TIMEOUT_S: Final = 3.0
_FINISHED: Final = "forebay_compaction_jobs_finished_total"
_INSTALL: Final = "--gateway needs the extra gateway: pip install 'forebay-console[gateway]'"


@attrs.frozen(kw_only=True)
class Worker:
    """One worker of the gateway, as it describes it."""

    id: str
    state: str
    node: str
    jobs: Sequence[str]
    done: int
    remaining: int
    """Bytes that its jobs have not read yet."""
    error: str
    error_age_s: float | None

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Self:
        """Read a gateway's description of a worker."""
        return cls(
            id=str(plain["id"]),
            state=str(plain["state"]),
            node=str(plain["node"] or ""),
            jobs=[str(job) for job in plain["jobs"]],
            done=int(plain["done"]),
            remaining=int(plain["remaining"]),
            error=str(plain["error"] or ""),
            error_age_s=plain.get("error_age_s"),
        )


@attrs.frozen(kw_only=True)
class GatewayView:
    """A gateway's description of itself."""

    address: str
    state: str
    queue: int
    running: int
    finished: float
    """Jobs that finished since the gateway began."""
    workers: Sequence[Worker]
    problems: Mapping[str, str]
    """Storage → why it cannot be used."""

    @classmethod
    def of(cls, address: str, plain: Mapping[str, Any]) -> Self:
        """Read a gateway's description."""
        numbers = plain["metrics"]
        storages = plain["storages"]
        return cls(
            address=address,
            state=str(plain["state"]),
            queue=int(plain["queue"]),
            running=int(plain["running"]),
            finished=sum(n for name, n in numbers.items() if name.startswith(_FINISHED)),
            workers=[Worker.of(worker) for worker in plain["worker_list"]],
            problems={k: str(s["problem"]) for k, s in storages.items() if s["problem"]},
        )


class WatchedGateway:
    """A gateway, asked at most every ``ttl_s`` seconds for all viewers together."""

    def __init__(self, gateway: Gateway, *, ttl_s: float) -> None:
        self.address: Final = gateway.address
        self._gateway: Final = gateway
        self._view: Final = RefreshedValue(self._ask, ttl_s)

    @classmethod
    def at(
        cls, address: str, *, token_file: str | None, tls_ca: str | None, ttl_s: float
    ) -> WatchedGateway:
        """Return the gateway at ``ip:port``; `ConfigurationError` where its client is missing."""
        try:
            from forebay_compaction_ray.addresses import address_of
            from forebay_compaction_ray.client.gateway import Gateway
            from forebay_compaction_ray.options import client_credentials
        except ImportError as error:
            raise ConfigurationError(_INSTALL) from error
        security = client_credentials(token_file, tls_ca, None, None)
        return cls(Gateway(address_of(address), security, timeout_s=_TIMEOUT_S), ttl_s=ttl_s)

    def view(self) -> GatewayView:
        """Return the gateway's description. Raises a `ForebayError` if it does not answer."""
        return self._view.get()

    def close(self) -> None:
        """Close the connection."""
        self._gateway.close()

    def _ask(self) -> GatewayView:
        return GatewayView.of(self.address, self._gateway.call("Describe", {}))
