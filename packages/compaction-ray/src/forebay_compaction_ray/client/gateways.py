"""The gateways of one process, in turn, and each one's description of itself."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from cachetools import TTLCache

from forebay_compaction_ray import storage_mark
from forebay_compaction_ray.client.client_context import ClientContext
from forebay_compaction_ray.client.endpoints import known_endpoints
from forebay_compaction_ray.client.gateway import Gateway, UnreachableError
from forebay_compaction_ray.client.lifecycle import Trouble, TroubleKind
from forebay_compaction_ray.messages import Greeting, Submission
from forebay_compaction_ray.protocol import MESSAGE_BYTES, RefusedError
from forebay_state_api.errors import CorruptStateError, StorageError

_log = logging.getLogger(__name__)

_QUIET_S: Final = 60.0
"""Seconds between two lines of the log about one gateway."""
_MOST_QUIET: Final = 1024
_MEANINGS: Final = {
    "queue_full": (TroubleKind.BUSY, "refused"),
    "too_large": (TroubleKind.NEVER, "limits"),
    "unknown_storage": (TroubleKind.NEVER, "storage"),
    "another_directory": (TroubleKind.NEVER, "storage"),
    "mark_unread": (TroubleKind.AWAY, "storage"),
}
"""Code of a refusal → its trouble, and the cause of a fallback; other refusals are temporary."""


class Gateways:
    """Opens connections to the effective gateways, and asks them in turn. Thread-safe."""

    def __init__(self, here: ClientContext, answer_s: float) -> None:
        """``answer_s`` is the longest wait for a connection and an answer."""
        self.endpoints: Final = known_endpoints(here.storage, here.options.addresses, here.clock)
        """Returns the addresses of the effective gateways."""
        self._here: Final = here
        self._answer_s: Final = answer_s
        self._lock: Final = threading.Lock()
        self._open: dict[str, Gateway] = {}
        self._turns: Final = itertools.count(1)
        self._mark: str | None = None
        """The mark of the state directory, as last read."""
        self._warned: Final[TTLCache[str, None]] = TTLCache(_MOST_QUIET, _QUIET_S, here.clock)

    def in_turn(self) -> Sequence[Gateway]:
        """Return the effective gateways, starting with a different one each time."""
        addresses = self.endpoints()
        first = next(self._turns) % max(1, len(addresses))
        return [self.at(address) for address in (*addresses[first:], *addresses[:first])]

    def at(self, address: str) -> Gateway:
        """Return the gateway at an address."""
        here = self._here
        with self._lock:
            if address not in self._open:
                self._open[address] = Gateway(
                    address, here.options.security, timeout_s=self._answer_s, clock=here.clock
                )
            return self._open[address]

    def greet(self, gateway: Gateway, submission: Submission) -> Greeting | Trouble:
        """Ask a gateway about itself, and make sure that the job may go there.

        Reports the events that no gateway has received yet.
        """
        try:
            with self._here.counts.reporting() as events:
                greeting = gateway.hello(events)
            if not self._has_mark(greeting, submission.storage):
                greeting = gateway.hello(marks={submission.storage: self._mark})
            self._check(greeting, submission)
        except (UnreachableError, RefusedError) as error:
            return self.trouble_of(gateway, error)
        return greeting

    def trouble_of(self, gateway: Gateway, error: UnreachableError | RefusedError) -> Trouble:
        """Count a failed call, and return the trouble that it is for the job."""
        where = (gateway.address,)
        if isinstance(error, UnreachableError):
            self._here.counts.add("unreachable")
            return Trouble(TroubleKind.AWAY, str(error), "unreachable", where)
        self._here.counts.add("refused")
        kind, cause = _MEANINGS.get(error.code, (TroubleKind.AWAY, "refused"))
        return Trouble(kind, f"the gateway {gateway.address} refuses it: {error}", cause, where)

    def release(self, job_id: str, address: str = "") -> None:
        """End a job at the gateway that has it, or at all gateways if that is unknown."""
        for gateway in [self.at(address)] if address else self.in_turn():
            with suppress(UnreachableError, RefusedError):
                gateway.release(job_id)

    def warn(self, *troubles: Trouble) -> None:
        """Log troubles, unless each of their gateways had a warning within the last minute."""
        for trouble in troubles:
            with self._lock:
                due = set(trouble.where or (trouble.cause,)) - set(self._warned)
                self._warned.update(dict.fromkeys(due))
            if due:
                _log.warning("%s", trouble.why)

    def close(self) -> None:
        """Close all connections; calls in progress fail."""
        for gateway in list(self._open.values()):
            gateway.close()

    def _check(self, greeting: Greeting, submission: Submission) -> None:
        """Refuse a job that the gateway would refuse, or that it could not read."""
        if greeting.state != "serving":
            raise RefusedError("draining", f"it accepts no more jobs: it is {greeting.state!r}")
        if above := submission.excess({"message_bytes": MESSAGE_BYTES, **greeting.limits}):
            raise RefusedError("too_large", f"the job exceeds its limits: {above}")
        if not self._has_mark(greeting, submission.storage):
            raise wrong_directory_refusal(
                greeting, submission.storage, self._here.storage.url, self._mark
            )

    def _has_mark(self, greeting: Greeting, name: str) -> bool:
        """Return whether a gateway's storage has the state directory's mark, or no mark yet."""
        theirs = greeting.storages.get(name, {}).get("mark", "")
        if theirs in ("", self._mark):
            return True
        try:
            self._mark = storage_mark.read(self._here.storage)
        except (StorageError, CorruptStateError) as error:
            what = f"the mark of the state directory cannot be read: {error}"
            raise RefusedError("mark_unread", what) from error
        return self._mark == theirs


def wrong_directory_refusal(
    greeting: Greeting, name: str, url: str, mark: str | None
) -> RefusedError:
    """Return the refusal of a gateway whose storage does not have the ``mark`` of the state's url.

    It may pass if the gateway itself has a problem with the storage.
    """
    theirs = greeting.storages[name]
    root, found, problem = theirs["root"], theirs["mark"], theirs.get("problem", "")
    return RefusedError(
        "mark_unread" if problem else "another_directory",
        f"its storage {name!r}, {root}, has {storage_mark.shown(found)}, and the state in {url} "
        f"has {storage_mark.shown(mark)}: these are two directories. Mount the same one there, or "
        f"start the gateway with that one. {problem}".rstrip(),
    )
