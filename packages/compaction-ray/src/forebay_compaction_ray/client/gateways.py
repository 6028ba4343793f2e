"""The gateways of one process, in turn, and what each says about itself."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

from forebay_compaction_ray import storage_mark
from forebay_compaction_ray.client.counts import Counts
from forebay_compaction_ray.client.endpoints import Endpoints, KnownEndpoints
from forebay_compaction_ray.client.gateway import Gateway, UnreachableError
from forebay_compaction_ray.client.lifecycle import Kind, Trouble
from forebay_compaction_ray.messages import Greeting, Submission
from forebay_compaction_ray.options import RemoteOptions
from forebay_compaction_ray.protocol import MESSAGE_BYTES, RefusedError
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import CorruptStateError, StorageError

_log = logging.getLogger(__name__)

_QUIET_S: Final = 60.0
"""Seconds between two lines of the log about one gateway."""
_HOPELESS: Final = {"too_large": "limits", "unknown_storage": "storage"}
"""Refusals that last as long as the gateway → the cause of a fallback."""


class Gateways:
    """Opens connections to the effective gateways, and asks them in turn. Thread-safe."""

    def __init__(
        self,
        storage: ObjectStorage,
        options: RemoteOptions,
        counts: Counts,
        *,
        clock: Callable[[], float],
        answer_s: float,
    ) -> None:
        """``answer_s`` is the longest wait for a connection and an answer."""
        self.endpoints: Final = KnownEndpoints(Endpoints(storage), options.addresses, clock)
        self._storage: Final = storage
        self._options: Final = options
        self._counts: Final = counts
        self._clock: Final = clock
        self._answer_s: Final = answer_s
        self._lock: Final = threading.Lock()
        self._open: dict[str, Gateway] = {}
        self._turn = 0
        self._same: dict[str, str] = {}
        """Gateway → the incarnation of it that has this state directory."""
        self._warned_s: dict[str, float] = {}

    def in_turn(self) -> Sequence[Gateway]:
        """Return the effective gateways, beginning with another one each time."""
        addresses = self.endpoints.current()
        with self._lock:
            self._turn += 1
            first = self._turn % max(1, len(addresses))
        return [self.at(address) for address in (*addresses[first:], *addresses[:first])]

    def at(self, address: str) -> Gateway:
        """Return the gateway at an address."""
        with self._lock:
            if address not in self._open:
                security = self._options.security
                self._open[address] = Gateway(
                    address, security, timeout_s=self._answer_s, clock=self._clock
                )
            return self._open[address]

    def up(self) -> dict[str, bool]:
        """Return, for each effective gateway, whether it answers, as far as this process knows."""
        with self._lock:
            known = dict(self._open)
        return {a: a not in known or known[a].is_up for a in self.endpoints.last_known}

    def greet(self, gateway: Gateway, submission: Submission) -> Greeting | Trouble:
        """Ask a gateway about itself, and make sure that the job may go there.

        Reports the events that no gateway has received yet.
        """
        where = (gateway.address,)
        unsent = self._counts.take()
        try:
            greeting = gateway.hello(unsent)
        except (UnreachableError, RefusedError) as error:
            self._counts.give_back(unsent)
            self._counts.add("refused" if isinstance(error, RefusedError) else "unreachable")
            return trouble_of(gateway, error)
        if greeting.state != "serving":
            why = f"{gateway.address} takes no more jobs: it is {greeting.state!r}"
            return Trouble(Kind.AWAY, why, "refused", where)
        if above := submission.excess({"message_bytes": MESSAGE_BYTES, **greeting.limits}):
            why = f"above the limits of {gateway.address}: {above}"
            return Trouble(Kind.NEVER, why, "limits", where)
        return self._of_another_directory(gateway, greeting) or greeting

    def tell(self, address: str, what: Callable[[Gateway], object]) -> None:
        """Call the gateway that has a job, or all gateways if that is unknown."""
        for gateway in [self.at(address)] if address else self.in_turn():
            try:
                what(gateway)
            except (UnreachableError, RefusedError) as error:
                _log.info("%s", error)

    def warn(self, trouble: Trouble) -> None:
        """Log a trouble, unless each of its gateways had a warning within the last minute."""
        now, keys = self._clock(), trouble.where or (trouble.cause,)
        with self._lock:
            due = [k for k in keys if now - self._warned_s.get(k, -_QUIET_S) >= _QUIET_S]
            self._warned_s.update(dict.fromkeys(due, now))
        if due:
            _log.warning("%s", trouble.why)

    def close(self) -> None:
        """Close all connections; calls in progress fail."""
        with self._lock:
            gateways = list(self._open.values())
        for gateway in gateways:
            gateway.close()

    def _of_another_directory(self, gateway: Gateway, greeting: Greeting) -> Trouble | None:
        """Return the trouble if the gateway's directory is another; ask once per incarnation."""
        theirs = greeting.storages.get(self._options.storage, {})
        if not theirs.get("mark") or self._same.get(gateway.address) == greeting.boot:
            return None
        try:
            ours = storage_mark.read(self._storage)
        except (StorageError, CorruptStateError) as error:
            return Trouble(Kind.AWAY, f"the mark of the state directory: {error}", "storage")
        if ours == theirs["mark"]:
            self._same[gateway.address] = greeting.boot
            return None
        why = (
            f"the gateway {gateway.address} has another directory than this query: its storage "
            f"{self._options.storage!r} is {theirs['root']}, and the state is in "
            f"{self._storage.url}; mount the same directory there, or start it with the right one"
        )
        return Trouble(Kind.NEVER, why, "storage", (gateway.address,))


def trouble_of(gateway: Gateway, error: UnreachableError | RefusedError) -> Trouble:
    """Return the trouble that a failed call means for a job that was to go there."""
    where = (gateway.address,)
    if isinstance(error, UnreachableError):
        return Trouble(Kind.AWAY, str(error), "unreachable", where)
    why = f"{gateway.address}: {error}"
    if error.code in _HOPELESS:
        return Trouble(Kind.NEVER, why, _HOPELESS[error.code], where)
    kind = Kind.BUSY if error.retry_after_s > 0 else Kind.AWAY
    return Trouble(kind, why, "refused", where, error.retry_after_s, error.code)
