"""Find the version that a batch opens, and the parts of it that a range of key groups needs.

Batch ``n`` of a run that began at batch ``since`` opens

* for ``n = since``: the newest version ≤ n that any run began to make; of the runs that made it,
  the highest-ranked one whose manifests *alone* cover every key group counts;
* for ``n > since``: the newest version in (since, n] that the run itself began to make; until there
  is one, the version that it opened at ``since``, which its record names.

Each key group is read from the manifest of the highest task attempt in the run that is opened.

A subtask with the same key groups as in the version that it opens finds its manifest by listing its
own folder (`own_part`), or the whole version where it needs the clocks of all subtasks. When a run
begins, it checks that the version it continues is complete. Within a run each subtask sees whether
the other subtask of its folder has committed. The first and the last share a folder; so if Spark
ran only the first or only the last subtasks of a batch, the next batch detects it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from forebay_engine.versions.format import layout
from forebay_engine.versions.format.epochs import Epochs, RunVersion
from forebay_engine.versions.format.manifest import Manifest, read_with_content
from forebay_engine.versions.format.markers import (
    Made,
    VersionListing,
    list_pair,
    list_version,
    marked_versions,
)
from forebay_state_api.contract.files import ParentState, StateFile
from forebay_state_api.contract.object_storage import ObjectNotFoundError
from forebay_state_api.errors import ConfigurationError, CorruptStateError
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.threads import ReadThreads

if TYPE_CHECKING:
    from forebay_engine.versions.format.layout import Coordinates
    from forebay_state_api.contract.object_storage import ObjectStorage


_NAMED: Final = 3
"""The most missing manifests that a message names."""
Parents: TypeAlias = "Sequence[tuple[ParentState, Manifest]]"
"""The parts of a version that a range needs, each with the manifest from which it was clipped."""


@attrs.frozen
class KeyGroupSegment:
    """Consecutive key groups that are read from one manifest."""

    range: KeyGroupRange
    made: Made


def by_attempt(listing: VersionListing) -> Sequence[Made]:
    """Return one run's manifests by attempt; of several for one subtask the last one counts."""
    return sorted(listing.manifests, key=lambda m: (m.by.attempt_id, m.by.random_id))


def cover(listing: VersionListing, max_parallelism: int) -> Sequence[KeyGroupSegment] | None:
    """Return segments that together cover every key group, in order; ``None`` if some are missing.

    ``listing`` holds one run only. Of several attempts the one with the highest id counts.
    """
    best: list[Made | None] = [None] * max_parallelism
    for made in by_attempt(listing):
        groups = made.by.range
        if groups.end < max_parallelism:
            best[groups.start : groups.end + 1] = [made] * (groups.end - groups.start + 1)
    segments, start = [], 0
    for found, same in groupby(best):
        if found is None:
            return None
        end = start + sum(1 for _ in same) - 1
        segments.append(KeyGroupSegment(KeyGroupRange(start, end), found))
        start = end + 1
    return segments


def is_complete(listing: VersionListing) -> bool:
    """Return whether one run's manifests cover all key groups of their own max parallelism."""
    counts = {made.by.max_parallelism for made in listing.manifests}
    return any(cover(listing, count) is not None for count in counts)


def is_whole(storage: ObjectStorage, at: RunVersion) -> bool:
    """Return whether a version can be opened (one request)."""
    return is_complete(list_version(storage, at.version).of_run(at.run_key or ""))


def begun(
    storage: ObjectStorage, batch_id: int, epochs: Epochs, spark_run: str
) -> Iterator[VersionListing]:
    """Yield the versions ≤ ``batch_id`` that any run began to make, newest first.

    They are the candidates for a run that begins there; each is listed only when the caller needs
    it. In ``foreachBatch`` every batch is a separate run: there, above the batch at which the Spark
    run began, only versions made by the Spark run count.
    """
    same = epochs.of_spark_run(spark_run)
    began = min((entry.since for entry in same), default=batch_id)
    own = frozenset(entry.run_key for entry in same)
    for version in marked_versions(storage, batch_id) if batch_id else ():
        listing = list_version(storage, version)
        if version > began:
            listing = listing.of_runs(own)
        if listing:
            yield listing


def complete_runs(listing: VersionListing, epochs: Epochs) -> Sequence[str]:
    """Return the runs whose manifests alone cover every key group of the version, by rank."""
    ranked = runs_by_rank(listing, epochs)
    return [key for key in ranked if is_complete(listing.of_run(key))]


def runs_by_rank(listing: VersionListing, epochs: Epochs) -> Sequence[str]:
    """Return the runs that began to make a version, the highest-ranked first."""
    ranks = []
    for run_key in listing.run_keys:
        number = max(made.by.epoch for made in listing.of_run(run_key).objects)
        ranks.append(epochs.rank(run_key, number))
    return [run_key for _, run_key in sorted(ranks, reverse=True)]


def own_part(
    storage: ObjectStorage, origin: RunVersion, made: Coordinates
) -> KeyGroupSegment | None:
    """Return the part of a version that a subtask with ``made``'s key groups made (one request).

    ``None`` when the whole version must be listed: its run had different subtasks, or not both
    subtasks of the pair have committed.
    """
    listing = list_pair(storage, origin.version, made.subtask, made.parallelism)
    listing = listing.of_run(origin.run_key or "")
    alike = (made.parallelism, made.max_parallelism)
    committed = {
        one.by.subtask: one
        for one in by_attempt(listing)
        if (one.by.parallelism, one.by.max_parallelism) == alike
    }
    own = committed.get(made.subtask)
    other = committed.get(layout.other_of_pair(made.subtask, made.parallelism))
    if own is None or other is None or own.by.range != made.range:
        return None
    return KeyGroupSegment(made.range, own)


def own_newest(
    storage: ObjectStorage, batch_id: int, since: int, run_key: str
) -> VersionListing | None:
    """Return the newest version that the run itself began, above ``since`` up to ``batch_id``."""
    for version in marked_versions(storage, batch_id):
        if version <= since:
            return None
        listing = list_version(storage, version).of_run(run_key)
        if listing:
            return listing
    return None


def segments_of(
    listing: VersionListing, max_parallelism: int, uid: str, url: str
) -> Sequence[KeyGroupSegment]:
    """Return the segments of one run's version; raise if it is incomplete or does not fit."""
    for made in listing.manifests:
        stored = made.by.max_parallelism
        if stored != max_parallelism:
            raise ConfigurationError(
                f"the state of operator {uid!r} in {url} was made with max_parallelism={stored}, "
                f"which is fixed for its life; pass max_parallelism={stored} instead of "
                f"{max_parallelism}"
            )
    segments = cover(listing, max_parallelism)
    if segments is None:
        raise incomplete_version_error(listing, uid, url)
    return segments


def incomplete_version_error(listing: VersionListing, uid: str, url: str) -> CorruptStateError:
    """Return the error for a version that was begun but not completed."""
    began = {(made.by.run_key, made.by.subtask) for made in listing.objects}
    done = {(made.by.run_key, made.by.subtask) for made in listing.manifests}
    torn = [made.name for made in listing.torn if (made.by.run_key, made.by.subtask) not in done]
    batch = listing.version - 1
    if torn:
        reason = f"truncated (shorter than the size in its name): {', '.join(torn)}"
    else:
        reason = (
            f"{absent(listing)}batch {batch} was begun by {len(began)} subtask(s) and committed "
            f"by {len(done)}, yet Spark went on. The likely cause is a limit(), take() or show() "
            "downstream of the operator, which lets Spark finish a batch before all of its tasks "
            "have run: remove it. Or a manifest was deleted: put it back"
        )
    return CorruptStateError(
        f"version {listing.version} of the state of operator {uid!r} in {url} is incomplete: "
        f"{reason}. To recover, {_run_again(batch)}"
    )


def absent(listing: VersionListing) -> str:
    """Name the manifests of subtasks that began a version and did not commit it."""
    done = {(made.by.run_key, made.by.subtask) for made in listing.manifests}
    begun = {
        (made.by.run_key, made.by.subtask): f"{made.by.folder}/manifest-{made.by.attempt()}-…"
        for made in listing.objects
        if (made.by.run_key, made.by.subtask) not in done
    }
    names = [name for _, name in sorted(begun.items())]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"there is no {', '.join(names[:_NAMED])}{more}: " if names else ""


def missing_version_error(newest: int, batch_id: int, uid: str, url: str) -> CorruptStateError:
    """Return the error for a version that the batch before ``batch_id`` must have made."""
    return CorruptStateError(
        f"version {batch_id} of the state of operator {uid!r} in {url} is missing: every batch of "
        f"a stream makes one, and the newest that is stored is {newest}. It was deleted, or the "
        "state directory was restored from a copy that is older than the checkpoint: put it back, "
        f"or {_run_again(newest)}. If the operator has not been in the query since, or a "
        "foreachBatch sink skipped batches, whose rows are not in the state, go on without them by "
        "passing new_state=True for the first start"
    )


def _run_again(batch: int) -> str:
    return (
        f"let batch {batch} run again: stop the query, and remove commits/{batch} and everything "
        "newer in commits/ and offsets/ from its checkpoint, and from a sink that skips batches "
        f"it has (a file sink's _spark_metadata); outside of a stream, use batch_id={batch}"
    )


def parents_of(
    storage: ObjectStorage,
    segments: Sequence[KeyGroupSegment],
    opened: KeyGroupRange,
    *,
    threads: int = 1,
    known: Callable[[Made], Manifest | None] = lambda _: None,
) -> Iterator[tuple[ParentState, Manifest]]:
    """Yield the manifests that ``opened`` needs, clipped to it.

    One request for each that is not ``known``; ``threads`` of them are made side by side where
    requests wait.
    """
    parts = [(one.made, one.range.intersection(opened)) for one in segments]
    needed = [(made.name, part) for made, part in parts if part is not None]
    remembered = ((made.name, known(made)) for made, part in parts if part is not None)
    read = {name: manifest for name, manifest in remembered if manifest is not None}
    names = list(dict.fromkeys(name for name, _ in needed if name not in read))
    threads = threads if storage.waits else 1
    with ReadThreads(threads, "forebay-manifests") as pool:
        each = pool.map if min(threads, len(names)) > 1 else map
        manifests = iter(each(partial(_read, storage), names))
        for name, part in needed:
            if name not in read:
                read[name] = next(manifests)
            yield clipped(read[name], part, opened), read[name]


def manifests_of(
    segments: Sequence[KeyGroupSegment], read: Callable[[Made], Manifest]
) -> Sequence[Manifest]:
    """Return the manifests of ``segments``, in subtask order, as ``read`` returns them."""
    made = sorted({s.made.name: s.made for s in segments}.values(), key=lambda m: m.by.subtask)
    return [read(one) for one in made]


def times_of(
    storage: ObjectStorage, segments: Sequence[KeyGroupSegment], known: Mapping[str, Manifest]
) -> Sequence[Mapping[str, Any]]:
    """Return `Manifest.times` of the manifests of ``segments``, as far as every subtask needs them.

    They are in names; only a manifest without them there is read, unless it is ``known``.
    """
    made = {segment.made.name: segment.made for segment in segments}.values()
    return [
        known[one.by.random_id].times
        if one.by.random_id in known
        else one.clocks or _read(storage, one.name).times
        for one in made
    ]


def _read(storage: ObjectStorage, name: str) -> Manifest:
    return read(storage, name)[0]


def read(storage: ObjectStorage, name: str) -> tuple[Manifest, bytes]:
    """Read a manifest of the version that is opened; `CorruptStateError` if it is gone."""
    try:
        return read_with_content(storage, name)
    except ObjectNotFoundError as error:
        raise CorruptStateError(
            f"manifest {name} in {storage.url} disappeared while its version was opened: it is no "
            "longer retained, or was deleted by hand"
        ) from error


def clipped(manifest: Manifest, part: KeyGroupRange, opened: KeyGroupRange) -> ParentState:
    """Return the part of a manifest for ``part``, for a backend that opens ``opened``."""
    return ParentState(
        manifest_id=manifest.id,
        range=part,
        whole=part == manifest.made.range == opened,
        files=_clipped_files(manifest.files, part),
        meta=manifest.meta,
        descriptions=manifest.descriptions,
    )


def _clipped_files(files: Sequence[StateFile], part: KeyGroupRange) -> Sequence[StateFile]:
    kept = ((file, file.range.intersection(part)) for file in files)
    return [attrs.evolve(file, range=groups) for file, groups in kept if groups is not None]
