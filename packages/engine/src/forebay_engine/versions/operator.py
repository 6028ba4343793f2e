"""The protocol as one task uses it: begin a version, commit it.

The order of requests is the protocol. `OperatorVersions.begin` lists the epochs (and mints one at
a run's first batch), puts the start marker, lists the subtask's folder in the version to be opened
and reads its manifest; `TaskVersion.commit` looks with one get whether a newer run may have begun,
and puts the manifest. With event time the whole version is listed in place of the folder. A process
that has run the query before does not list the epochs at the beginning, and does not read a
manifest that it put: an ordinary batch makes four requests, one of them a get. Their number does
not grow with the number of subtasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from forebay_engine.versions.choosing import fencing, opening
from forebay_engine.versions.choosing.forks import ForkSource
from forebay_engine.versions.choosing.timeline_choice import StartingTask
from forebay_engine.versions.commit import check_subtask, committed_fields, mark, merged
from forebay_engine.versions.format.epochs import RunVersion
from forebay_engine.versions.format.folder import OperatorStorage
from forebay_engine.versions.format.keyed_by import UNKNOWN, KeyedBy
from forebay_engine.versions.format.layout import Coordinates
from forebay_engine.versions.format.manifest import Manifest, put_manifest
from forebay_engine.versions.format.markers import list_version
from forebay_engine.versions.writer_memory import MEMORY, WriterMemory
from forebay_state_api.contract.file_names import random_id
from forebay_state_api.errors import ConfigurationError, StateAccessError

if TYPE_CHECKING:
    from forebay_engine.versions.choosing.forks import RestoreFrom
    from forebay_engine.versions.format.checkpoint import Checkpoint
    from forebay_engine.versions.format.epochs import RunIdentity, RunRecord
    from forebay_engine.versions.format.markers import Made, VersionListing
    from forebay_state_api.contract.files import CommittedState, ParentState
    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_api.keys import KeyGroupRange


class OperatorVersions:
    """The versions of one operator's state. ``memory`` saves requests, and decides nothing."""

    def __init__(
        self,
        storage: ObjectStorage,
        *,
        uid: str,
        max_parallelism: int,
        backend_name: str,
        keyed_by: KeyedBy = UNKNOWN,
        memory: WriterMemory = MEMORY,
    ) -> None:
        """``storage`` is rooted at the operator's folder (`layout.operator_folder`)."""
        self.storage = storage
        self.uid = uid
        self.max_parallelism = max_parallelism
        self.backend_name = backend_name
        self.keyed_by = keyed_by
        self.memory = memory

    def begin(
        self,
        *,
        batch_id: int,
        subtask: int,
        parallelism: int,
        range: KeyGroupRange,  # noqa: A002 - the contract's word
        attempt_id: int,
        run: RunIdentity,
        consecutive: bool = False,
        bounded: bool = False,
        new_state: bool = False,
        restore: RestoreFrom | None = None,
        now_us: int,
        batch_ms: int = 0,
        checkpoint: Checkpoint | None = None,
        every_clock: bool = False,
    ) -> TaskVersion:
        """Begin to make version ``batch_id + 1``, and open the version that it builds on.

        If there is none, ``restore`` is opened instead, if it is given; `storage` must then be an
        `OperatorStorage`. ``consecutive`` means that every batch runs this operator, so that a run
        begins with the version that the previous batch made, unless ``new_state``. ``bounded``
        means that no stream will repeat the batch, so that its version is final when it is
        complete. ``batch_ms`` is `Manifest.batch_ms`, and ``checkpoint`` the query's checkpoint
        where it is known. ``every_clock`` means that `TaskVersion.every_times` will be called.

        Raises `FencedError` when a newer run owns the state, `ConfigurationError` when nothing is
        stored where state is expected or it does not fit this operator, `StateMigrationError` when
        it is kept under other key columns, `CorruptStateError` when the version to be opened is
        incomplete, or missing.
        """
        entering = StartingTask(
            run=run,
            batch_id=batch_id,
            uid=self.uid,
            max_parallelism=self.max_parallelism,
            consecutive=consecutive,
            bounded=bounded,
            new_state=new_state,
            restore=restore,
            checkpoint=checkpoint,
        )
        entry, record = fencing.enter(self.storage, entering, self.memory)
        made = Coordinates(
            version=batch_id + 1,
            max_parallelism=self.max_parallelism,
            parallelism=parallelism,
            subtask=subtask,
            range=range,
            epoch=entry.number,
            run_key=run.key,
            attempt_id=attempt_id,
            random_id=random_id(),
        )
        check_subtask(made, self.uid)
        mark(self.storage, made, self.uid)
        opened = self._opened(made, entry.since, record, whole=every_clock)
        self.keyed_by.check(opened.manifests, self.uid)
        return TaskVersion(self, entering, made, opened, now_us, batch_ms)

    def _opened(
        self, made: Coordinates, since: int, record: RunRecord | None, *, whole: bool
    ) -> _Opened:
        origin, segments = self._found(made, since, record, whole=whole)
        if origin.run_key is None:
            if record is None:  # after its first batch a run has a version of its own
                raise opening.missing_version_error(0, made.version - 1, self.uid, self.storage.url)
            return self._begun(made.range, ForkSource.of(record.details))
        parents = list(
            opening.parents_of(self.storage, segments, made.range, known=self._remembered)
        )
        self._check_backend([manifest for _, manifest in parents])
        every = segments if sum(len(one.range) for one in segments) == self.max_parallelism else ()
        return _Opened(origin, parents, every=every)

    def manifest(self, made: Made) -> Manifest:
        """Return a manifest, and remember it; other subtasks in the process may need it, too."""
        found = self._remembered(made)
        if found is not None:
            return found
        found, data = opening.read(self.storage, made.name)
        self.memory.put(self.storage.url, made.name, found, data)
        return found

    def _remembered(self, made: Made) -> Manifest | None:
        return self.memory.manifest(self.storage.url, made.name, made.by.range)

    def _found(
        self, made: Coordinates, since: int, record: RunRecord | None, *, whole: bool
    ) -> tuple[RunVersion, Sequence[opening.KeyGroupSegment]]:
        """Return the version to open, and at least the segments that the task's range needs.

        With ``whole`` the segments of all subtasks.
        """
        part_of = self._every_part if whole else self._own_part
        batch_id = made.version - 1
        if batch_id > since:
            origin = RunVersion(version=batch_id, run_key=made.run_key)
            if parts := part_of(origin, made):
                return origin, parts
            if listing := opening.own_newest(self.storage, batch_id, since, made.run_key):
                origin = RunVersion(version=listing.version, run_key=made.run_key)
                return origin, self._segments(listing)
        record = record or fencing.record_of(self.storage, made.run_key, self.uid)
        if record.origin.run_key is None:
            return record.origin, ()
        # The task that wrote the record checked that all subtasks have committed this version.
        if parts := part_of(record.origin, made):
            return record.origin, parts
        return record.origin, self.all_segments(record.origin)

    def _own_part(self, origin: RunVersion, made: Coordinates) -> Sequence[opening.KeyGroupSegment]:
        part = opening.own_part(self.storage, origin, made)
        return () if part is None else [part]

    def _every_part(self, origin: RunVersion, _: Coordinates) -> Sequence[opening.KeyGroupSegment]:
        """Return the segments of all subtasks; none unless the version is whole."""
        listing = list_version(self.storage, origin.version).of_run(origin.run_key or "")
        return opening.cover(listing, self.max_parallelism) or ()

    def all_segments(self, origin: RunVersion) -> Sequence[opening.KeyGroupSegment]:
        """Return the segments of all subtasks that made a version, in key-group order."""
        listing = list_version(self.storage, origin.version)
        return self._segments(listing.of_run(origin.run_key or ""))

    def _segments(self, listing: VersionListing) -> Sequence[opening.KeyGroupSegment]:
        return opening.segments_of(listing, self.max_parallelism, self.uid, self.storage.url)

    def _begun(self, groups: KeyGroupRange, source: ForkSource | None) -> _Opened:
        """Return the empty version, or the version that a fork begins with."""
        empty = RunVersion(version=0, run_key=None)
        if source is None:
            return _Opened(empty, ())
        assert isinstance(self.storage, OperatorStorage)
        parents = source.opened(self.storage, groups, self.max_parallelism)
        return _Opened(empty, parents, source)

    def _check_backend(self, manifests: Sequence[Manifest]) -> None:
        for manifest in manifests:
            if manifest.backend != self.backend_name:
                raise ConfigurationError(
                    f"the state of operator {self.uid!r} in {self.storage.url} was made by the "
                    f"backend {manifest.backend!r}, and this query asks for "
                    f"{self.backend_name!r}. Set spark.forebay.state.backend to "
                    f"{manifest.backend!r}; or take the state over with restore_from= in a new "
                    "query, or in an operator with another uid and new_state=True"
                )


class _Opened:
    """The version that was opened, and the parts of it that the task's range needs."""

    def __init__(
        self,
        origin: RunVersion,
        parents: opening.Parents,
        source: ForkSource | None = None,
        *,
        every: Sequence[opening.KeyGroupSegment] = (),
    ) -> None:
        """``every`` are the segments of all subtasks, if they were listed."""
        self.every = every
        self.origin = origin
        self.version = origin.version
        self.source = source
        self.parents = [parent for parent, _ in parents]
        self.clipped = [(parent.range, manifest) for parent, manifest in parents]
        self.manifests = list({m.id: m for _, m in parents}.values())


class TaskVersion:
    """One version in the making by one task attempt, from the marker to the manifest."""

    def __init__(  # noqa: PLR0917 - one caller
        self,
        operator: OperatorVersions,
        entering: StartingTask,
        made: Coordinates,
        opened: _Opened,
        now_us: int,
        batch_ms: int,
    ) -> None:
        """Created by `OperatorVersions.begin`."""
        self._operator = operator
        self._entering = entering
        self._made = made
        self._opened = opened
        self._now_us = now_us
        self._batch_ms = batch_ms
        self._committed = False

    @property
    def version(self) -> int:
        """The version that is being made."""
        return self._made.version

    @property
    def opened_version(self) -> int:
        """The version that was opened; 0 is the empty version."""
        return self._opened.version

    @property
    def continues_run(self) -> bool:
        """Whether the micro-batch just before this one, of this run, made the opened version."""
        opened, made = self._opened.origin, self._made
        return opened.version == made.version - 1 and opened.run_key == made.run_key

    @property
    def parents(self) -> Sequence[ParentState]:
        """The parts of the opened version that the task's range needs, in key-group order.

        Empty where another backend made the version: its parts are then in `converted`.
        """
        return () if self.converted else self._opened.parents

    @property
    def converted(self) -> Sequence[ParentState]:
        """The parts that a fork begins with if another backend made them, as it opens them."""
        return self._opened.parents if self.source_backend != self._operator.backend_name else ()

    @property
    def source_backend(self) -> str:
        """The name of the backend that made the opened version."""
        made_by = {manifest.backend for manifest in self._opened.manifests}
        return made_by.pop() if made_by else self._operator.backend_name

    @property
    def source(self) -> ForkSource | None:
        """The other operator's version that was opened, if this begins a fork."""
        return self._opened.source

    @property
    def manifests(self) -> Sequence[Manifest]:
        """The manifests behind `parents`, whole."""
        return self._opened.manifests

    @property
    def clipped_manifests(self) -> Sequence[tuple[KeyGroupRange, Manifest]]:
        """The manifests behind `parents`, each with the key groups that the task needs of it."""
        return self._opened.clipped

    def every_manifest(self) -> Sequence[Manifest]:
        """Return the manifests of all subtasks that made the opened version, in subtask order.

        Lists the version and reads the manifests that `manifests` does not hold, one request for
        each that the process has not put, or read before.
        """
        if self._opened.source is not None:
            return self._of_source(self._opened.source)
        known = self._known()
        return opening.manifests_of(
            self._every_segment(),
            lambda made: known.get(made.by.random_id) or self._operator.manifest(made),
        )

    def every_times(self) -> Sequence[Mapping[str, Any]]:
        """Return the clocks of all subtasks that made the opened version, as in `Manifest.times`.

        Lists the version, whose names carry them, unless `OperatorVersions.begin` has; and reads
        the manifests whose names do not.
        """
        if self._opened.source is not None:
            return [one.times for one in self._of_source(self._opened.source)]
        return opening.times_of(self.storage, self._every_segment(), self._known())

    def _of_source(self, source: ForkSource) -> Sequence[Manifest]:
        assert isinstance(self.storage, OperatorStorage)
        return source.every_manifest(self.storage, self._operator.max_parallelism)

    def _every_segment(self) -> Sequence[opening.KeyGroupSegment]:
        if self._opened.origin.run_key is None:
            return ()
        return self._opened.every or self._operator.all_segments(self._opened.origin)

    def _known(self) -> Mapping[str, Manifest]:
        return {manifest.id: manifest for manifest in self._opened.manifests}

    @property
    def storage(self) -> ObjectStorage:
        """The operator's folder."""
        return self._operator.storage

    @property
    def is_restored(self) -> bool:
        """Whether an earlier version of this or another operator was opened."""
        return self._opened.version > 0 or self._opened.source is not None

    @property
    def coordinates(self) -> Coordinates:
        """The coordinates of this attempt, which its marker and manifest are named by."""
        return self._made

    def commit(
        self,
        committed: CommittedState,
        *,
        descriptions: Mapping[str, Mapping[str, Any]],
        generations: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
        operator_state: Mapping[str, Any] | None = None,
        operator_files: Sequence[str] = (),
        metrics: Callable[[], Mapping[str, Any]] = dict,
        times: Mapping[str, Any] | None = None,
    ) -> str:
        """Make the version durable for this task's range; return the manifest's identity.

        ``descriptions`` and ``generations`` describe the declared states; ``operator_state`` is
        plain data, and ``operator_files`` are the files that it needs; ``metrics`` returns plain
        data for people, in addition to the sizes of the commit, and is called just before the
        manifest is written; ``times`` are plain data for timers. Call it once, before the last
        output batch is handed on. Raises `FencedError` when a newer run has begun since,
        `StateAccessError` when it is called twice.
        """
        if self._committed:
            raise StateAccessError(
                f"version {self.version} has already been committed by this task"
            )
        fencing.check_owner(self._operator.storage, self._entering, self._operator.memory)
        fields = committed_fields(committed, operator_files=operator_files, metrics=metrics())
        manifest = Manifest(
            made=self._made,
            uid=self._operator.uid,
            backend=self._operator.backend_name,
            parents=[manifest.id for manifest in self.manifests],
            opened_version=self.opened_version,
            now_us=self._now_us,
            batch_ms=self._batch_ms,
            descriptions=self._merged("descriptions", descriptions),
            generations=self._merged("generations", generations or {}),
            operator_state=operator_state or {},
            times=times or {},
            keyed_by=self._operator.keyed_by.known_from(self.manifests).plain(),
            **fields,
        )
        name, data = put_manifest(self._operator.storage, manifest)
        self._operator.memory.put(self._operator.storage.url, name, manifest, data)
        self._committed = True
        return manifest.id

    def _merged(self, part: str, declared: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the entries of the declared states, and of stored states not declared."""
        parents = () if self.converted else self.manifests
        return merged([getattr(parent, part) for parent in parents], declared)
