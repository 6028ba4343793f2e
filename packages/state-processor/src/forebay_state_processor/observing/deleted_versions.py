"""Reads the history of an operator: figures of versions that are not stored any more."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from forebay_engine.versions.cleaning.deleted_figures import HistoryBlock, read_block
from forebay_state_processor.observing.parallel_requests import for_each
from forebay_state_processor.observing.timeline import Timeline, timeline_of

if TYPE_CHECKING:
    from forebay_engine.versions.format.markers import Made
    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_processor.observing.listing import OperatorListing


class HistoryReader:
    """Reads the objects of an operator's history, each once: they never change."""

    def __init__(self, storage: ObjectStorage) -> None:
        """``storage`` is the operator's folder."""
        self._storage = storage
        self._read: dict[str, Sequence[Made]] = {}

    def timeline(
        self, listing: OperatorListing, versions: int, *, most: int | None = None
    ) -> Timeline:
        """Return the timeline with at least its ``versions`` newest versions, if it has them.

        Makes one request for each object of the history that is needed and was not read before;
        ``most`` limits them, the newest come first, and the timeline ends with what was read.
        """
        needed = _needed(listing, versions)
        self._fetch([block for block in needed if block.name not in self._read][:most])
        stored = {block.name for block in listing.history}
        self._read = {name: made for name, made in self._read.items() if name in stored}
        remembered = [made for block in needed for made in self._read.get(block.name, ())]
        return timeline_of([*listing.made, *remembered], listing.known)

    def _fetch(self, blocks: Sequence[HistoryBlock]) -> None:
        contents = for_each(self._storage, blocks, partial(read_block, self._storage))
        for block, made in zip(blocks, contents, strict=True):
            self._read[block.name] = made


def _needed(listing: OperatorListing, versions: int) -> Sequence[HistoryBlock]:
    """Return the objects of the history that hold the newest deleted versions."""
    newest = listing.timeline.newest
    if newest is None:
        return listing.history[:1] if versions else ()
    oldest = newest.version - versions + 1
    stored = listing.timeline.versions[-1].version
    return [b for b in listing.history if b.newest >= oldest] if stored > oldest else ()
