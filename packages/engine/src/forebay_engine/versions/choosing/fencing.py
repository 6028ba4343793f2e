"""Fencing: a task reads or mints its run's epoch, and stops when a newer run owns the state.

The order at a run's first batch: decide which version to open (nothing is written before it is
known to work), take a number, put the epoch entry, list the epochs again and check that no newer
run appeared in between, put the run's record. A record without an entry therefore belongs to a run
whose entry the janitor has pruned. Such a run must not mint again, or a driver that slept for a day
would fence the driver that took over.

Before a manifest, one get shows that the number above the run's own is not taken, and so that no
newer run has begun (`format.epochs`). Where it is taken, the epochs are listed and decide. A get of
an object that does not exist shows nothing in a store that remembers its answers, and nothing about
a number that was taken long ago; so each process lists the epochs every ten minutes as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from forebay_engine.versions.choosing.forks import DETAILS, ForkPins, ForkSource, choose
from forebay_engine.versions.choosing.reader import open_version
from forebay_engine.versions.choosing.timeline import check_epochs
from forebay_engine.versions.choosing.timeline_choice import StartingTask, choose_origin
from forebay_engine.versions.format.epochs import (
    BOUNDED,
    UNKNOWN_SPARK_RUN,
    EpochEntry,
    Epochs,
    RunRecord,
    RunVersion,
    decide_record,
    is_taken,
    list_epochs,
    mint,
    read_record,
)
from forebay_engine.versions.format.folder import OperatorStorage
from forebay_engine.versions.format.markers import list_version, marked_versions
from forebay_engine.versions.publishing import first_import
from forebay_state_api.contract.file_names import LAST_VERSION
from forebay_state_api.errors import ConfigurationError, CorruptStateError, FencedError

if TYPE_CHECKING:
    from forebay_engine.versions.writer_memory import WriterMemory
    from forebay_state_api.contract.object_storage import ObjectStorage


@attrs.frozen
class _Proposal:
    """The content of a run's record before it is put."""

    origin: RunVersion
    source: ForkSource | None = None
    hold: ForkPins | None = None
    """Keeps the janitor from deleting the source's files."""

    @property
    def is_empty(self) -> bool:
        """Whether the run begins with empty state."""
        return self.origin.run_key is None and self.source is None


def enter(
    storage: ObjectStorage, task: StartingTask, memory: WriterMemory
) -> tuple[EpochEntry, RunRecord | None]:
    """Return the run's epoch and, at its first batch, its record with the version it continues.

    Raises `FencedError` when a higher-ranked run exists. After its first batch a process that has
    entered before makes no request, and learns of such a run from `check_owner`.
    """
    entry = memory.entry(storage.url, task.run.key)
    if entry is not None and entry.since < task.batch_id:
        return entry, None
    at = memory.clock()
    entry, record = _enter(storage, task)
    memory.entered(storage.url, entry, at)
    return entry, record


def _enter(storage: ObjectStorage, task: StartingTask) -> tuple[EpochEntry, RunRecord | None]:
    epochs = list_epochs(storage)
    own = epochs.of_run(task.run.key)
    if own is None:
        return _enter_first(storage, task, epochs)
    _check_newest(epochs, own, task)
    if task.batch_id < own.since:
        raise _went_back_error(own, task)
    if task.batch_id > own.since:
        return own, None
    record = read_record(storage, task.run.key)
    if record is None:
        record = _decide(storage, task, _propose(storage, task, epochs))
    return own, record


def check_owner(storage: ObjectStorage, task: StartingTask, memory: WriterMemory) -> None:
    """Raise `FencedError` if a newer run has begun since `enter`; call it before `put_manifest`."""
    if _none_above(storage, task.run.key, memory):
        return
    at = memory.clock()
    epochs = list_epochs(storage)
    own = epochs.of_run(task.run.key)
    if own is None:
        raise _fenced_error(task, "its epoch was cleaned up meanwhile")
    _check_newest(epochs, own, task)
    memory.entered(storage.url, own, at)


def _none_above(storage: ObjectStorage, run_key: str, memory: WriterMemory) -> bool:
    """Return whether a get is enough to know that no run ranks above this one."""
    entry = memory.entry(storage.url, run_key, recent=True)
    if entry is None or is_taken(storage, entry.number + 1):
        return False
    # The process may have slept, while the janitor deleted what the get looked for.
    return memory.entry(storage.url, run_key, recent=True) is not None


def _enter_first(
    storage: ObjectStorage, task: StartingTask, epochs: Epochs
) -> tuple[EpochEntry, RunRecord]:
    _check_single_operator(epochs, task)
    if read_record(storage, task.run.key) is not None:
        # Another task of the run may have minted since the listing; otherwise it was pruned.
        epochs = list_epochs(storage)
        if epochs.of_run(task.run.key) is None:
            raise _fenced_error(task, "its epoch was already cleaned up")
    proposed = _propose(storage, task, epochs)
    if epochs.of_run(task.run.key) is None:
        epochs = mint(storage, task.run, task.batch_id, epochs)
    own = epochs.of_run(task.run.key)
    _check_newest(epochs, own, task)
    if own is None:
        raise _fenced_error(task, "its epoch disappeared")
    if proposed.is_empty:  # an import may be done meanwhile; one that ends from now on fails
        proposed = _propose_fork(storage, task, epochs)
    return own, _decide(storage, task, proposed)


def _propose(storage: ObjectStorage, task: StartingTask, epochs: Epochs) -> _Proposal:
    """Propose the version that the run continues, checked as far as object names allow."""
    origin = choose_origin(storage, task, epochs)
    if origin is None:
        _check_empty_allowed(storage, task)
        return _propose_fork(storage, task, epochs)
    return _Proposal(origin)


def _propose_fork(storage: ObjectStorage, task: StartingTask, epochs: Epochs) -> _Proposal:
    """Propose the empty version, or another operator's version."""
    empty = RunVersion(version=0, run_key=None)
    imported = _imported(storage, task, epochs)
    if task.restore is None:
        return _Proposal(empty, imported)
    source, hold = choose(
        storage,
        task.restore,
        batch_id=task.batch_id,
        uid=task.uid,
        max_parallelism=task.max_parallelism,
        epochs=epochs,
    )
    if imported is not None and source.folder != imported.folder:
        hold.release()
        raise ConfigurationError(
            f"operator {task.uid!r} in {storage.url} has an imported first version, and "
            f"restore_from={task.restore.text()} asks for another one: leave restore_from= out, or "
            "give the query another name"
        )
    return _Proposal(empty, source, hold)


def _imported(storage: ObjectStorage, task: StartingTask, epochs: Epochs) -> ForkSource | None:
    """Return the imported first version for a run that begins at batch 0, if there is one."""
    if task.batch_id:
        return None
    found = first_import(storage, epochs)
    if found is None:
        check_epochs(storage, list_version(storage, 1), epochs)
        _check_none_deleted(storage, task, epochs)
        return None
    assert isinstance(storage, OperatorStorage)
    with open_version(
        storage,
        uid=task.uid,
        version=found.version,
        run_key=found.run_key,
        max_parallelism=task.max_parallelism,
    ):
        return ForkSource.imported(storage.folder, task.uid, found)


def _check_none_deleted(storage: ObjectStorage, task: StartingTask, epochs: Epochs) -> None:
    """Refuse to begin with empty state where an earlier run began with an import."""
    for entry in epochs.entries:
        record = None if entry.since else read_record(storage, entry.run_key)
        if record is not None and ForkSource.is_imported(record.details):
            raise ConfigurationError(
                f"operator {task.uid!r} in {storage.url} began with an imported version, which is "
                "not stored any more, and its query went back to batch 0: import the state "
                "again under another name of the query, and start it with that name"
            )


def _decide(storage: ObjectStorage, task: StartingTask, proposal: _Proposal) -> RunRecord:
    source = proposal.source
    details: dict[str, Any] = {} if source is None else {DETAILS: attrs.asdict(source)}
    if task.bounded:
        details[BOUNDED] = True
    proposed = RunRecord(
        since=task.batch_id,
        origin=proposal.origin,
        keyed_uuid=task.run.keyed_uuid,
        app_id=task.run.app_id,
        run_id=task.run.run_id,
        details=details,
        location=None if task.checkpoint is None else task.checkpoint.location,
    )
    decided = decide_record(storage, task.run.key, proposed)
    if decided is not proposed and proposal.hold is not None:
        proposal.hold.release()
    return decided


def record_of(storage: ObjectStorage, run_key: str, uid: str) -> RunRecord:
    """Return the record that a run put at its first batch; `CorruptStateError` if it is missing."""
    record = read_record(storage, run_key)
    if record is None:
        raise CorruptStateError(
            f"the record of run {run_key} of operator {uid!r} in {storage.url} is missing: it was "
            "deleted by hand. Restart the query: a new run writes its own record"
        )
    return record


def _check_empty_allowed(storage: ObjectStorage, task: StartingTask) -> None:
    if task.batch_id == 0 or task.new_state:
        return
    nothing = (
        f"no state of operator {task.uid!r} is stored in {storage.url} at or below version "
        f"{task.batch_id}, but the query is at batch {task.batch_id}"
    )
    stored = marked_versions(storage, LAST_VERSION)
    if stored:
        raise ConfigurationError(
            f"{nothing}: the oldest stored version is {min(stored)}. Either the query went back "
            "further than spark.forebay.retention keeps (go back to a newer batch), or the first "
            "start of a new operator failed (pass new_state=True again)"
        )
    raise ConfigurationError(
        f"{nothing}: the state directory or the uid may be mistyped or renamed, or the state was "
        "deleted. If the operator is new in this query, pass new_state=True for its first start"
    )


def _check_single_operator(epochs: Epochs, task: StartingTask) -> None:
    """Refuse a second operator with this uid when it is about to mint, in the first batch."""
    for other in epochs.of_spark_run(task.run.spark_run):
        if other.since == task.batch_id and other.run_key != task.run.key:
            raise duplicate_uid_error(task.uid)


def _check_newest(epochs: Epochs, own: EpochEntry | None, task: StartingTask) -> None:
    """Raise if another run than the task's ranks highest; ``own`` is the entry of the task's."""
    newest = epochs.newest()
    if newest is None or newest.run_key == task.run.key:
        return
    spark_run = task.run.spark_run if own is None else own.spark_run
    same_run = newest.spark_run == spark_run != UNKNOWN_SPARK_RUN
    if same_run and newest.since <= task.batch_id:
        raise duplicate_uid_error(task.uid)
    when = "before this run had one" if own is None else f"after this run's {own.number}"
    detail = f"epoch {newest.number} began at batch {newest.since}, {when}"
    raise _fenced_error(task, detail)


def duplicate_uid_error(uid: str) -> ConfigurationError:
    """Return the error for a query with two operators of one uid."""
    return ConfigurationError(
        f"operator {uid!r}: the query has two operators of this uid, and it names the state of "
        "one. Give each its own; if two inputs are to share state, make one operator of them: "
        "keyed(a, …).connect(keyed(b, …)). An operator whose output is used twice is one operator "
        "only if keyed() is called once"
    )


def _fenced_error(task: StartingTask, detail: str) -> FencedError:
    return FencedError(
        f"the state of operator {task.uid!r} belongs to a newer run, so batch {task.batch_id} of "
        f"this run must not go on ({detail}): this query was started elsewhere, or its checkpoint "
        "was copied. Stop the older driver, or give the copy its own state directory"
    )


def _went_back_error(own: EpochEntry, task: StartingTask) -> FencedError:
    return _fenced_error(task, f"the run itself began at batch {own.since} and cannot go back")
