"""Marks versions of streams as final when Spark has recorded the commit of their batch.

A progress event names each operator by its observation node, and reports how long Spark took to
record the commit. The marks are put on a thread of their own, one request each; if the storage is
slow, only the newest version of an operator is marked, which makes the ones below it final too. No
failure here affects the query: without a mark, a version is final when the next batch begins.

Versions that are made in ``foreachBatch`` get no mark: the plan of the query does not show their
operators. The next batch, a run of its own, makes them final.
"""

from __future__ import annotations

import atexit
import functools
import logging
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_engine.versions import OperatorStorage, RunIdentity, operator_folder
from forebay_engine.versions.choosing.finality import mark_final
from forebay_engine.versions.format.epochs import read_record
from forebay_spark_runtime.driver.operator_names import observed_id
from forebay_state_api.daemon_pool import DaemonPool
from forebay_state_api.storage import open_storage

if TYPE_CHECKING:
    from forebay_spark_runtime.driver.options import KeyedOptions
    from forebay_state_api.contract.object_storage import ObjectStorage

_log = logging.getLogger(__name__)

_COMMIT: Final = "commitOffsets"
"""The duration in a progress event that shows that Spark has recorded the commit."""
_REMEMBERED: Final = 1_000
_EXIT_WAIT_S: Final = 5.0


@attrs.frozen
class _Commit:
    """A batch of one operator that Spark has committed."""

    keyed_uuid: str
    query: str
    version: int
    run_key: str


class FinalVersions:
    """Marks the versions of the operators that were made in this process."""

    def __init__(self) -> None:
        self._operators: Final[dict[str, KeyedOptions]] = {}
        self._checked: Final[set[str]] = set()
        self._newest: Final[dict[str, _Commit]] = {}
        self._lock: Final = threading.Lock()
        self._pool: Final = DaemonPool("forebay-final")

    def remember(self, options: KeyedOptions) -> None:
        """Remember where an operator of a stream keeps its state."""
        self._operators[options.keyed_uuid] = options
        if len(self._operators) > _REMEMBERED:
            del self._operators[next(iter(self._operators))]

    def committed(self, progress: Mapping[str, Any], app_id: str) -> None:
        """Mark the versions of a batch, on a thread; ``progress`` is a progress event."""
        for commit in self._commits(progress, app_id):
            with self._lock:
                is_queued = commit.keyed_uuid in self._newest
                self._newest[commit.keyed_uuid] = commit
            work = functools.partial(self._mark, commit.keyed_uuid)
            if not is_queued and not self._pool.do_if_possible(work):
                self._newest.pop(commit.keyed_uuid, None)

    def wait(self, seconds: float) -> None:
        """Wait until all pending marks are written, at most ``seconds``."""
        done = threading.Event()
        if self._newest and self._pool.do_if_possible(done.set):
            done.wait(seconds)

    def _commits(self, progress: Mapping[str, Any], app_id: str) -> Iterator[_Commit]:
        if _COMMIT not in (progress.get("durationMs") or {}):
            return
        for name in progress.get("observedMetrics") or {}:
            options = self._operators.get(observed_id(name) or "")
            if options is not None and options.state_dir is not None:
                run = RunIdentity(
                    keyed_uuid=options.keyed_uuid, app_id=app_id, run_id=progress["runId"]
                )
                query = options.batch.query or progress["id"]
                yield _Commit(options.keyed_uuid, query, progress["batchId"] + 1, run.key)

    def _mark(self, keyed_uuid: str) -> None:
        """Mark the newest version of an operator, and versions that are committed meanwhile."""
        while True:
            with self._lock:
                commit = self._newest[keyed_uuid]
            self._try_to_mark(commit)
            with self._lock:
                if self._newest[keyed_uuid] is commit:
                    del self._newest[keyed_uuid]
                    return

    def _try_to_mark(self, commit: _Commit) -> None:
        try:
            storage = self._storage(commit)
            if self._is_stored(storage, commit.run_key):
                mark_final(storage, commit.version, commit.run_key)
        except Exception:  # noqa: BLE001 - no failure here may affect the query
            _log.debug("version %d was not marked as final", commit.version, exc_info=True)

    def _storage(self, commit: _Commit) -> ObjectStorage:
        options = self._operators[commit.keyed_uuid]
        assert options.state_dir is not None
        root = open_storage(options.state_dir, options.settings.storage_options())
        return OperatorStorage(root, operator_folder(commit.query, options.uid))

    def _is_stored(self, storage: ObjectStorage, run_key: str) -> bool:
        """Return whether the tasks know the run under this key; asked once per run."""
        if run_key not in self._checked:
            if read_record(storage, run_key) is None:
                return False
            self._checked.add(run_key)
        return True


final_versions: Final = FinalVersions()
"""Marks the versions of this process's queries as final."""

atexit.register(final_versions.wait, _EXIT_WAIT_S)
