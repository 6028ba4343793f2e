"""The storages of a gateway, and the marks by which clients and workers recognise them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from forebay_compaction_ray import storage_mark
from forebay_compaction_ray.worker.body import WorkerStorage
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.settings.redaction import redacted
from forebay_state_api.storage.opening import open_storage


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
        """Name → id of the mark, for each storage that could be read."""
        self.problems: Final = dict.fromkeys(places, "the gateway has not read its mark yet")
        """Name → why the gateway cannot read it, for each of the others."""
        self._places: Final = places
        self._open: Final = open_
        self._looking: Final = asyncio.Lock()
        self._looks = 0

    async def look(self) -> None:
        """Read the marks of the storages that have a problem, and mark those without a mark.

        It may take as long as the slowest storage. Callers that wait for it do not look again.
        """
        looks = self._looks
        async with self._looking:
            if self._looks == looks:
                await self._look()
                self._looks += 1

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

    async def _look(self) -> None:
        for name in list(self.problems):
            try:
                self.marks[name] = await asyncio.to_thread(self._marked, self._places[name])
                del self.problems[name]
            except Exception as error:  # noqa: BLE001 - it is shown to the operator
                self.problems[name] = f"the gateway cannot use it: {str(error) or repr(error)}"

    def _marked(self, place: WorkerStorage) -> str:
        return storage_mark.put(self._open(place.url, place.options))
