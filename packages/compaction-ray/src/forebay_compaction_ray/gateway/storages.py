"""The storages of a gateway, and the marks by which clients and workers recognise them."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from forebay_compaction_ray import storage_mark
from forebay_compaction_ray.gateway.single_flight import SingleFlight
from forebay_compaction_ray.worker.body import WorkerStorage
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import StorageError
from forebay_state_api.settings.redaction import redacted
from forebay_state_api.storage import open_storage

_ANSWER_S: Final = 3.0
"""Longest wait of a look for a storage."""


class GatewayStorages:
    """The storages by name. A storage whose mark is not known yet gets no jobs."""

    def __init__(
        self,
        places: Mapping[str, WorkerStorage],
        open_: Callable[[str, Mapping[str, Any]], ObjectStorage] = open_storage,
    ) -> None:
        """Open no storage yet; see `look`."""
        self.names: Final = sorted(places)
        self.marks: Final[dict[str, str]] = {}
        """Name → id of the mark, for each storage that could be read once."""
        self.problems: Final = dict.fromkeys(places, "the gateway has not read its mark yet")
        """Name → why the gateway does not find the mark now, for each storage where it does not."""
        self._places: Final = places
        self._open: Final = open_
        self._answers: Final[dict[str, asyncio.Future[str | None]]] = {}
        """Name → the answer of a storage that is waited for."""
        self._looks: Final = SingleFlight(self._look_at_all)

    @property
    def unusable(self) -> dict[str, str]:
        """Name → the problem, for each storage without a known mark."""
        return {name: why for name, why in self.problems.items() if name not in self.marks}

    @property
    def doubted(self) -> Sequence[str]:
        """The storages with a known mark that the gateway does not find now."""
        return [name for name in self.problems if name in self.marks]

    async def look(self) -> None:
        """Read the marks of all storages, and mark those that the gateway has never seen marked.

        A known mark stays: the gateway's own machine may have lost the directory; see `mark_again`.
        It waits some seconds for a storage; a later look has its late answer. Callers that wait
        share the next look.
        """
        await self._looks()

    async def mark_again(self, name: str) -> None:
        """Replace a known mark that no longer exists: read the current one, or create one."""
        await self._look_at(name, None)

    def close(self) -> None:
        """Stop waiting for answers."""
        for answer in self._answers.values():
            answer.cancel()

    def to_plain(self) -> dict[str, dict[str, str]]:
        """Describe the storages for clients and for display."""
        return {
            name: {
                "root": redacted(place.url),
                "mark": self.marks.get(name, ""),
                "problem": self.problems.get(name, ""),
            }
            for name, place in sorted(self._places.items())
        }

    async def _look_at_all(self) -> None:
        looks = (self._look_at(name, self.marks.get(name)) for name in self.names)
        await asyncio.gather(*looks)

    async def _look_at(self, name: str, known: str | None) -> None:
        read = storage_mark.put if known is None else storage_mark.read
        try:
            found = await self._with(name, read)
        except Exception as error:  # noqa: BLE001 - it is shown to the operator
            self.problems[name] = f"the gateway cannot use it: {str(error) or repr(error)}"
            return
        if known is None and found is not None:
            self.marks[name] = found
        self.problems.pop(name, None)
        if found != (known := self.marks.get(name)):
            self.problems[name] = (
                f"it has {storage_mark.shown(found)} on {platform.node()}, the gateway's machine, "
                f"and {storage_mark.shown(known)} where workers have it: mount the same directory "
                "there"
            )

    async def _with(self, name: str, do: Callable[[ObjectStorage], str | None]) -> str | None:
        """Use a storage on a thread: one at a time for each storage, since a dead mount hangs."""
        if (answer := self._answers.get(name)) is None:
            place = self._places[name]
            work = asyncio.to_thread(lambda: do(self._open(place.url, place.options)))
            answer = self._answers[name] = asyncio.ensure_future(work)
        try:
            answered, _ = await asyncio.wait({answer}, timeout=_ANSWER_S)
        except asyncio.CancelledError:
            self._answers.pop(name, None)
            answer.cancel()
            raise
        if not answered:
            raise StorageError(f"it did not answer within {_ANSWER_S:g} s", transient=True)
        self._answers.pop(name, None)
        return answer.result()
