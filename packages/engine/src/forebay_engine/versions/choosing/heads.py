"""The stored timelines of one operator: their newest versions, and who made them.

A run that begins from the newest version of another run continues its timeline. A run that begins
from an older version starts a new timeline: after a copy of the checkpoint, after the checkpoint
went back, and when two drivers ran at once. If it only repeated the other run's last batch, which
Spark had not committed, there is nothing to choose between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from forebay_engine.versions.choosing import opening
from forebay_engine.versions.choosing.recovery import Recovery
from forebay_engine.versions.format import layout
from forebay_engine.versions.format.epochs import Epochs, RunRecord, RunVersion, read_record
from forebay_engine.versions.format.markers import Made, VersionListing

if TYPE_CHECKING:
    from datetime import datetime

    from forebay_state_api.contract.object_storage import ObjectStorage


@attrs.frozen(kw_only=True)
class Head:
    """The newest complete version of a timeline."""

    version: int
    run_key: str
    record: RunRecord | None
    """The version that the run continued, and the run's identity."""
    batch_ms: int
    """Time of the batch that made the version; 0 where it is not known."""
    made: datetime
    """The time at which the version became complete, by the store's clock."""
    chain: Mapping[str, int]
    """Run → its newest version in the timeline, including the head's own run."""

    @property
    def location(self) -> str | None:
        """The checkpoint that the run began from."""
        return _location(self.record)


def list_heads(storage: ObjectStorage, epochs: Epochs) -> list[Head]:
    """Return the timelines of an operator, the highest-ranked run's first."""
    stored = _Stored(storage)
    runs = stored.newest
    ranked = sorted(runs, key=lambda key: epochs.rank(key, stored.number_of(key)), reverse=True)
    return [
        stored.head(run_key)
        for place, run_key in enumerate(ranked)
        if not any(stored.passes(newer, run_key) for newer in ranked[:place])
    ]


def recovery_for(head: Head, storage: ObjectStorage, epochs: Epochs) -> Recovery:
    """Return the decision that ``head``'s timeline continues and every other is abandoned."""
    newest: dict[str, int] = {entry.run_key: 0 for entry in epochs.entries}
    for made in _all_made(storage)[0]:
        run_key = made.by.run_key
        newest[run_key] = max(newest.get(run_key, 0), made.by.version)
    left = {
        run_key: head.chain.get(run_key, 0)
        for run_key, version in newest.items()
        if run_key != head.run_key and not 0 < version <= head.chain.get(run_key, 0)
    }
    return Recovery(kept=head.chain, left=left)


def _all_made(storage: ObjectStorage) -> tuple[list[Made], dict[str, datetime]]:
    """List all markers and manifests, and the time of each object by name (one request)."""
    infos = storage.list(layout.VERSIONS)
    made = [found for found in map(Made.parse, infos) if found is not None]
    return made, {info.name: info.modified for info in infos}


class _Stored:
    """The result of one list of all versions, and the records of the runs in it."""

    def __init__(self, storage: ObjectStorage) -> None:
        made, self._modified = _all_made(storage)
        by_version: dict[int, list[Made]] = {}
        for one in made:
            by_version.setdefault(one.by.version, []).append(one)
        self._complete: dict[RunVersion, VersionListing] = {}
        self.newest: dict[str, int] = {}
        """Run → its newest complete version."""
        for version in sorted(by_version):
            listing = VersionListing(version=version, objects=by_version[version])
            for run_key in listing.run_keys:
                of_run = listing.of_run(run_key)
                if opening.is_complete(of_run):
                    self._complete[RunVersion(version=version, run_key=run_key)] = of_run
                    self.newest[run_key] = version
        self._records = {run_key: read_record(storage, run_key) for run_key in self.newest}

    def passes(self, newer: str, run_key: str) -> bool:
        """Return whether a newer run continued a run's timeline, or repeated its last batch."""
        last = RunVersion(version=self.newest[run_key], run_key=run_key)
        record, other = self._records[run_key], self._records[newer]
        if other is not None and other.origin == last:
            return True
        again = RunVersion(version=last.version, run_key=newer)
        return (
            again in self._complete
            and _time_of(self._complete[again]) == _time_of(self._complete[last])
            and _location(record) == _location(other)
            and self._parent(again) == self._parent(last)
        )

    def _parent(self, made: RunVersion) -> RunVersion | None:
        """Return the version from which a version was made."""
        record = self._records[made.run_key or ""]
        if record is None:
            return None
        if made.version > record.since + 1:
            return RunVersion(version=made.version - 1, run_key=made.run_key)
        return record.origin

    def number_of(self, run_key: str) -> int:
        """Return the epoch number of a run, as its manifests record it."""
        listing = self._complete[RunVersion(version=self.newest[run_key], run_key=run_key)]
        return max(made.by.epoch for made in listing.objects)

    def head(self, run_key: str) -> Head:
        """Return the newest version of a run."""
        version = self.newest[run_key]
        listing = self._complete[RunVersion(version=version, run_key=run_key)]
        return Head(
            version=version,
            run_key=run_key,
            record=self._records[run_key],
            batch_ms=_time_of(listing),
            made=max(self._modified[manifest.name] for manifest in listing.manifests),
            chain=self._chain(run_key),
        )

    def _chain(self, run_key: str) -> dict[str, int]:
        chain = {run_key: self.newest[run_key]}
        record = self._records[run_key]
        while record is not None and record.origin.run_key not in {None, *chain}:
            assert record.origin.run_key is not None
            chain[record.origin.run_key] = record.origin.version
            record = self._records.get(record.origin.run_key)
        return chain


def _location(record: RunRecord | None) -> str | None:
    return None if record is None else record.location


def _time_of(listing: VersionListing) -> int:
    return max((made.batch_ms for made in listing.manifests), default=0)
