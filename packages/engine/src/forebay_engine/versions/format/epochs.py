"""Epochs: one per run of a query, minted by the run's own tasks, totally ordered.

An epoch identifies a run, by its run key. Tasks that mint at the same time may give a
run two entries, so runs are not ordered by entry: a run's rank is its highest number, and between
runs with the same number the run key decides. Tasks that list at different times agree on the
order of the runs they both saw, and once an entry is listed its run mints no other.

Before it puts an entry a task *takes* its number (`taken/<number>`, put if absent), which follows
the highest number that it has listed, or a number that another run has taken. So while
``taken/<n + 1>`` does not exist, no entry has a higher number than ``n``: `is_taken` shows
with one get what a list of the epochs would.

In addition to its entries every run has one *record* (`runs/<run key>`), put if absent: the version
that this run continues, and the run that made it. The first task to put it decides for all tasks
of the run, so they open one timeline even if a late commit of an older run arrives in between.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import attrs

from forebay_engine.versions.format import layout
from forebay_state_api.contract.checksummed import known_fields, read_sealed, seal, unseal
from forebay_state_api.contract.object_storage import ObjectNotFoundError
from forebay_state_api.errors import CorruptStateError

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage

UNKNOWN_SPARK_RUN: Final = "0" * 16
"""Replaces a Spark run's hash where the run id is not Spark's own."""

BOUNDED: Final = "bounded"
"""Key in `RunRecord.details`: the run evaluates a bounded DataFrame, outside of any stream."""

IMPORTED: Final = "imported"
"""Key in `RunRecord.details`: the run is an import, which made one version outside a job."""

_RECOVERY: Final = re.compile(rf"{layout.EPOCHS}/{layout.RECOVERY}(\d+)")
_TAKEN: Final = re.compile(rf"{layout.TAKEN}/(\d{{8,}})")
_ENTRY: Final = re.compile(r"(\d{8,})-(\d+)-([0-9a-f]{16})-([0-9a-f]{16})")


def _digest(*parts: str | None) -> str:
    text = "\x00".join("\x01" if part is None else part for part in parts)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@attrs.frozen(kw_only=True)
class RunIdentity:
    """The identity of a run that a worker can read from Spark."""

    keyed_uuid: str
    """Drawn by ``keyed()`` on the driver: once per query, once per batch in ``foreachBatch``."""
    app_id: str | None
    """``spark.app.id``."""
    run_id: str | None
    """``spark.jobGroup.id``: the query's run id, unless the user has set a job group."""
    action: str | None = None
    """Spark's name for the action that evaluates a bounded DataFrame. Not part of the key: all
    actions on one DataFrame are the same run."""

    @property
    def key(self) -> str:
        """The run key: 64 bits in hex."""
        return _digest(self.keyed_uuid, self.app_id, self.run_id)

    @property
    def spark_run(self) -> str:
        """Hash of application and run id, or action; `UNKNOWN_SPARK_RUN` if Spark set neither.

        Spark's run ids are UUIDs. A job group that the user has set does not identify the run.
        """
        try:
            uuid.UUID(self.run_id or "")
        except ValueError:
            if self.action is None:
                return UNKNOWN_SPARK_RUN
            return _digest(self.app_id, "action", self.action)
        return _digest(self.app_id, self.run_id)

    @property
    def known_spark_run(self) -> str:
        """`spark_run`, or an empty string if Spark set neither run id nor action."""
        return "" if self.spark_run == UNKNOWN_SPARK_RUN else self.spark_run


@attrs.frozen
class EpochEntry:
    """One object in ``epochs/``; its name encodes all of these fields."""

    number: int
    since: int
    """The batch at which the run began."""
    run_key: str
    spark_run: str

    @property
    def name(self) -> str:
        """The object's name."""
        ending = f"{self.since}-{self.run_key}-{self.spark_run}"
        return f"{layout.EPOCHS}/{self.number:08d}-{ending}"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Parse a `name`; return ``None`` for the name of any other object."""
        match = _ENTRY.fullmatch(name.removeprefix(f"{layout.EPOCHS}/"))
        return match and cls(int(match[1]), int(match[2]), match[3], match[4])

    @property
    def rank(self) -> tuple[int, str]:
        """The sort key of entries."""
        return (self.number, self.run_key)


@attrs.frozen
class Epochs:
    """The objects in ``epochs/``, as one listing shows them."""

    entries: Sequence[EpochEntry]
    recoveries: Sequence[int] = ()
    """Numbers of the decisions made with ``forebay recover``."""

    def of_run(self, run_key: str) -> EpochEntry | None:
        """Return the entry that determines a run's rank: its highest."""
        return _highest(entry for entry in self.entries if entry.run_key == run_key)

    def newest(self) -> EpochEntry | None:
        """Return the entry of the highest-ranked run."""
        return _highest(self.entries)

    @property
    def highest(self) -> int:
        """The highest number of an entry; 0 if there is none."""
        return max((entry.number for entry in self.entries), default=0)

    def of_spark_run(self, spark_run: str) -> Sequence[EpochEntry]:
        """Return the entries of one Spark run; ``foreachBatch`` mints one per batch."""
        if spark_run == UNKNOWN_SPARK_RUN:
            return ()
        return [entry for entry in self.entries if entry.spark_run == spark_run]

    def rank(self, run_key: str, number: int) -> tuple[int, str]:
        """Return the rank of a run, given an epoch number that one of its manifests records."""
        entry = self.of_run(run_key)
        return (number if entry is None else max(number, entry.number), run_key)


def _highest(entries: Iterable[EpochEntry]) -> EpochEntry | None:
    return max(entries, key=lambda entry: entry.rank, default=None)


@attrs.frozen(kw_only=True)
class RunVersion:
    """A version, and the run that made it; for example the one that a run continues."""

    version: int
    """0 for the empty version."""
    run_key: str | None
    """``None`` for the empty version."""


@attrs.frozen(kw_only=True)
class RunRecord:
    """The decision of a run's first task, which holds for all of its tasks."""

    since: int
    origin: RunVersion
    keyed_uuid: str
    app_id: str | None
    run_id: str | None
    details: Mapping[str, Any] = attrs.field(factory=dict)
    """More plain data that is decided once per run."""
    location: str | None = None
    """Location of the query's checkpoint; ``None`` where that is not known."""

    @property
    def identity(self) -> RunIdentity:
        """The run that made this decision."""
        return RunIdentity(keyed_uuid=self.keyed_uuid, app_id=self.app_id, run_id=self.run_id)

    @property
    def is_bounded(self) -> bool:
        """Whether no stream repeats the run's batches."""
        return bool(self.details.get(BOUNDED))

    @property
    def is_import(self) -> bool:
        """Whether the run is an import."""
        return IMPORTED in self.details


def list_epochs(storage: ObjectStorage) -> Epochs:
    """List all epochs (one request)."""
    names = [info.name for info in storage.list(layout.EPOCHS)]
    entries = map(EpochEntry.parse, names)
    recoveries = map(_RECOVERY.fullmatch, names)
    return Epochs([e for e in entries if e], [int(found[1]) for found in recoveries if found])


def mint(storage: ObjectStorage, run: RunIdentity, since: int, seen: Epochs) -> Epochs:
    """Mint an epoch above all of ``seen`` for a run without an epoch in it.

    It does not matter which of the run's tasks puts the entry. Lists again and returns the result:
    another run may have minted at the same time. If that one has taken the number, and its entry is
    listed, this run puts none.
    """
    number = seen.highest + 1
    while not _take(storage, number, run.key):
        seen = list_epochs(storage)
        if seen.of_run(run.key) is not None or seen.highest >= number:
            return seen
        number += 1
    entry = EpochEntry(number, since, run.key, run.spark_run)
    storage.put_if_absent(entry.name, seal({"since": since, "run": run.key}))
    return list_epochs(storage)


def is_taken(storage: ObjectStorage, number: int) -> bool:
    """Return whether a run has an epoch of this number, or is about to have one (one get).

    If not, no entry has this number or a higher one. The janitor deletes the object an hour after a
    higher number has its entry, so the answer holds only for callers that listed the epochs,
    without such an entry, less than an hour ago.
    """
    try:
        storage.get(taken_name(number))
    except ObjectNotFoundError:
        return False
    return True


def taken_name(number: int) -> str:
    """Return the name of the object that a run puts before its entry of this number."""
    return f"{layout.TAKEN}/{number:08d}"


def taken_number(name: str) -> int | None:
    """Parse a `taken_name`; return ``None`` for the name of any other object."""
    match = _TAKEN.fullmatch(name)
    return match and int(match[1])


def _take(storage: ObjectStorage, number: int, run_key: str) -> bool:
    """Take a number for a run; return ``False`` if another run has it, or may have it."""
    name = taken_name(number)
    if storage.put_if_absent(name, seal({"run": run_key})):
        return True
    try:
        holder = unseal(storage.get(name), f"{name} in {storage.url}")
    except (ObjectNotFoundError, CorruptStateError):  # deleted meanwhile, or cut
        return False
    return bool(holder["run"] == run_key)


def record_name(run_key: str) -> str:
    """Return the name of a run's record."""
    return f"{layout.RUNS}/{run_key}"


def read_record(storage: ObjectStorage, run_key: str) -> RunRecord | None:
    """Read the record of a run; ``None`` when none of its tasks has decided yet."""
    name = record_name(run_key)
    try:
        data = storage.get(name)
    except ObjectNotFoundError:  # nobody has decided yet
        return None
    record = read_sealed(data, f"{name} in {storage.url}", _record)
    if record.identity.key != run_key:
        raise CorruptStateError(
            f"{name} in {storage.url} is in the wrong place: it is another run's record"
        )
    return record


def _record(payload: Mapping[str, Any]) -> RunRecord:
    origin = RunVersion(**known_fields(RunVersion, payload["origin"]))
    return RunRecord(**known_fields(RunRecord, payload) | {"origin": origin})


def decide_record(storage: ObjectStorage, run_key: str, proposed: RunRecord) -> RunRecord:
    """Put the run's record unless another task has; return the record that is valid."""
    if storage.put_if_absent(record_name(run_key), seal(attrs.asdict(proposed))):
        return proposed
    decided = read_record(storage, run_key)
    return proposed if decided is None else decided
