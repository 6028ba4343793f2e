"""Builds a subtask and its versions from an operator's options, in a worker, and commits it."""

from __future__ import annotations

import functools
import logging
import os
from typing import TYPE_CHECKING, Any, cast

import attrs

from forebay_engine.compaction.process_services import service_of
from forebay_engine.execution.loop_thread import lend_loop
from forebay_engine.execution.subtask import Subtask
from forebay_engine.execution.subtask_metrics import SubtaskMetrics
from forebay_engine.versions import OperatorStorage, OperatorVersions, operator_folder
from forebay_engine.versions.choosing.marks import mark_of
from forebay_engine.versions.format.manifest_metrics import text
from forebay_spark_runtime.driver.service_outages import OperatorRun, report_outage
from forebay_spark_runtime.worker_process.catching_up import catch_up_with
from forebay_spark_runtime.worker_process.janitor_thread import clear_if_due, finish_pass
from forebay_spark_runtime.worker_process.process_reuse import process_stays
from forebay_state_api.metrics.phases import Phase
from forebay_state_api.plugins import plugins
from forebay_state_api.settings import EngineSettings, options_from
from forebay_state_api.storage import open_storage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay_engine.columns.outputs import Output
    from forebay_engine.execution.identity import SubtaskReport
    from forebay_engine.isolation.failed_record import ErrorRows
    from forebay_engine.timers.event_times import EventTimeRules
    from forebay_spark_runtime.driver.options import KeyedOptions, MarkSource
    from forebay_spark_runtime.worker_process.task_identity import TaskIdentity
    from forebay_state_api.codecs import ValueCodec
    from forebay_state_api.contract.compaction_service import CompactionService
    from forebay_state_api.contract.object_storage import ObjectStorage

_log = logging.getLogger(__name__)


class OperatorTask:
    """One task of an operator: opens the operator's versions, makes the subtask and commits it."""

    def __init__(
        self,
        options: KeyedOptions,
        task: TaskIdentity,
        subtask_metrics: SubtaskMetrics | None = None,
    ) -> None:
        self._options = options
        self._subtask_metrics = subtask_metrics or SubtaskMetrics()
        self._task = task
        self._versions = self._operator_versions()

    def subtask(
        self,
        function: Any,
        key_codec: ValueCodec,
        now_us: int,
        event_times: EventTimeRules | None = None,
        error_rows: ErrorRows | None = None,
        *,
        batch_output: Output | None = None,
        key_names: Sequence[str] = (),
    ) -> Subtask:
        """Return the subtask, not yet begun.

        :param function: a fresh copy of the user function.
        :param key_codec: the codec of keys.
        :param now_us: the micro-batch's time, in µs since the epoch.
        :param event_times: the rules for event times; ``None`` without event time.
        :param error_rows: what becomes of failed records; ``None`` means they fail the micro-batch.
        :param batch_output: makes the output of a batch function; ``None`` for other functions.
        :param key_names: the names of the key columns of a batch function.
        """
        options, task = self._options, self._task
        settings = options.settings
        return Subtask(
            function,
            plugins().backend(settings["state.backend"]),
            task.subtask,
            versions=self._versions,
            key_codec=key_codec,
            now_us=now_us,
            settings=options_from(EngineSettings, settings),
            backend_options=settings.backend_options(),
            cache_bytes=settings["state.cache-bytes"],
            new_state=options.new_state,
            restore=options.restore,
            options_of=settings.options_of,
            retry_budget_s=settings["storage.retry-budget"],
            compaction=None if self._versions is None else self._compaction(),
            operator="" if task.query is None else operator_folder(task.query, options.uid),
            event_times=event_times,
            late=options.late,
            error_rows=error_rows,
            subtask_metrics=self._subtask_metrics,
            lend_loop=lend_loop,
            use_kept_answers=settings["use-kept-answers"],
            batch_output=batch_output,
            key_names=key_names,
        )

    def follow_marks(self, subtask: Subtask) -> None:
        """Give a subtask the watermarks of the operators before it, which have committed."""
        for side, sources in enumerate(self._options.marks):
            marks = [self._mark_of(source) for source in sources]
            if marks:
                known = [mark_us for mark_us in marks if mark_us is not None]
                subtask.follow(min(known) if len(known) == len(marks) else None, side)

    def _mark_of(self, source: MarkSource) -> int | None:
        task = self._task.subtask
        storage = _opened(
            os.getpid(), source.state_dir, tuple(sorted(source.storage_options.items()))
        )
        folder = operator_folder(self._task.query or "", source.uid)
        counted = self._subtask_metrics.counted(storage)
        run = attrs.evolve(task.run, keyed_uuid=source.keyed_uuid)
        return mark_of(OperatorStorage(counted, folder), task.batch_id + 1, run.key)

    def commit(self, subtask: Subtask) -> SubtaskReport:
        """Commit the subtask's version, and start the janitor if a pass is due."""
        report = subtask.commit()
        with self._subtask_metrics.clock.during(Phase.COMMIT_INSTALL):
            self._after(subtask, report)
        return report

    def finish(self) -> None:
        """Wait for the threads that work for the task, if Spark ends the process with it.

        Then report an outage of the compaction service. A task calls it when it has yielded all
        rows.
        """
        if self._versions is None:
            return
        service = self._compaction()
        if not process_stays():
            finish_pass()
            service.detach()
        if (outage := service.outage()) is not None:
            report_outage(self._options.outages, self._who(), outage)

    def _who(self) -> OperatorRun:
        task = self._task.subtask
        return OperatorRun(
            uid=task.uid,
            query=task.query,
            run=task.run.run_id or task.run.keyed_uuid,
            service=self._options.settings["compaction.service"],
        )

    def _after(self, subtask: Subtask, report: SubtaskReport) -> None:
        task = subtask.task
        if _log.isEnabledFor(logging.INFO):
            figures = text(report.figures)
            _log.info(
                "operator %s, batch %d, subtask %d: %s",
                task.uid,
                task.batch_id,
                task.subtask,
                figures,
            )
        if self._versions is not None:
            clear_if_due(
                self._versions.storage,
                run_key=task.run.key,
                version=report.version,
                opened=report.opened_version,
                subtask=task.subtask,
                settings=self._options.settings,
            )
        catch_up_with(subtask.siblings())

    def _compaction(self) -> CompactionService:
        settings = self._options.settings
        name = settings["compaction.service"]
        return service_of(
            name,
            self._state_directory(),
            settings.service_options(plugins().compaction_service(name)),
            storage_options=settings.storage_options(),
        )

    def _operator_versions(self) -> OperatorVersions | None:
        options, task = self._options, self._task
        if task.query is None or options.state_dir is None:
            return None
        return OperatorVersions(
            OperatorStorage(
                self._subtask_metrics.counted(self._state_directory()),
                operator_folder(task.query, options.uid),
            ),
            uid=options.uid,
            max_parallelism=options.max_parallelism,
            backend_name=options.settings["state.backend"],
            keyed_by=options.keyed_by,
        )

    def _state_directory(self) -> ObjectStorage:
        directory = cast("str", self._options.state_dir)
        options = self._options.settings.storage_options()
        return _opened(os.getpid(), directory, tuple(sorted(options.items())))


@functools.lru_cache(maxsize=16)
def _opened(process: int, directory: str, options: tuple[tuple[str, Any], ...]) -> ObjectStorage:
    """Open a state directory once per process, so that a network store keeps its connections."""
    del process
    return open_storage(directory, dict(options))
