"""What runs in a Python worker: one subtask of one micro-batch, between two Arrow streams.

The version is committed before the last output batch is handed on: Spark may take a micro-batch for
done as soon as it has what it wants of the output, without running this to its end.
"""

from __future__ import annotations

import functools
import logging
import os
import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, cast

import attrs
from pyspark import TaskContext

from forebay_spark_runtime.clearing import clear_if_due
from forebay_spark_runtime.feeding import Feeder, Layout
from forebay_spark_runtime.options import KeyedOptions
from forebay_spark_runtime.place import Place
from forebay_spark_runtime.rows_out import RowWriter
from forebay_state_api.codecs import codec_for
from forebay_state_api.compaction import service_of
from forebay_state_api.plugins import plugins
from forebay_state_api.storage import open_storage
from forebay_state_api.subtask import Subtask
from forebay_state_api.versions import OperatorVersions, operator_folder

if TYPE_CHECKING:
    from forebay_state_api.compaction import CompactionService
    from forebay_state_api.storage import ObjectStorage

_log = logging.getLogger(__name__)

OUTPUT_ROWS: Final = 8_192
"""Rows of an output batch, about."""


@attrs.frozen(kw_only=True)
class SubtaskJob:
    """The function given to ``mapInArrow``; travels to the workers."""

    options: KeyedOptions
    function: bytes
    """The user's function, pickled: each task gets a fresh copy."""
    function_name: str
    key_type: bytes
    """The Python type of keys, pickled."""
    layout: Layout
    schema: Any
    """Of the output, as ``pa.Schema``."""
    time_zone: str
    streaming: bool

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Run one subtask: what ``mapInArrow`` calls."""
        place = Place.of(self.options, TaskContext.get(), streaming=self.streaming)
        versions = self._versions(place)
        source = _non_empty(batches)
        first = next(source, None)
        feeder = Feeder(self.layout, place.identity)
        writer = RowWriter(self.schema, function=self.function_name, time_zone=self.time_zone)
        now_us = 0 if first is None else feeder.now_us(first)
        with self._subtask(place, versions, now_us) as subtask:
            held: list[Any] = []
            for batch in feeder.ordered(first, source):
                feeder.feed(batch, subtask)
                if len(subtask.engine.rows_out) >= OUTPUT_ROWS:
                    yield from held
                    held = writer.batches(subtask.take_rows(), OUTPUT_ROWS)
            subtask.drain()
            last = writer.batches(subtask.take_rows(), OUTPUT_ROWS)
            self._commit(subtask, versions)
        yield from held
        yield from last

    def _commit(self, subtask: Subtask, versions: OperatorVersions | None) -> None:
        report = subtask.commit()
        task = subtask.task
        _log.info("operator %s, subtask %d: %s", task.uid, task.subtask, report)
        if versions is not None:
            clear_if_due(
                versions.storage,
                run_key=task.run.key,
                version=report.version,
                opened=report.opened_version,
                subtask=task.subtask,
                settings=self.options.settings,
            )

    def _subtask(self, place: Place, versions: OperatorVersions | None, now_us: int) -> Subtask:
        options = self.options
        settings = options.settings
        return Subtask(
            pickle.loads(self.function),  # noqa: S301 - it comes from the job's own driver
            plugins().backend(settings["state.backend"]),
            place.identity,
            versions=versions,
            key_codec=codec_for(
                pickle.loads(self.key_type),  # noqa: S301 - it comes from the job's own driver
                what=f"key of operator {options.uid!r}",
            ),
            now_us=now_us,
            settings=options.engine_settings(),
            backend_options=settings.backend_options(),
            cache_bytes=settings["state.cache-bytes"],
            new_state=options.new_state,
            compaction=None if versions is None else self._compaction(),
            operator="" if place.query is None else operator_folder(place.query, options.uid),
        )

    def _compaction(self) -> CompactionService:
        settings = self.options.settings
        name = settings["compaction.service"]
        return service_of(
            name,
            self._state_directory(),
            settings.service_options(plugins().compaction_service(name)),
            storage_options=settings.storage_options(),
        )

    def _versions(self, place: Place) -> OperatorVersions | None:
        options = self.options
        if place.query is None or options.state_dir is None:
            return None
        return OperatorVersions(
            self._state_directory().child(operator_folder(place.query, options.uid)),
            uid=options.uid,
            max_parallelism=options.max_parallelism,
            backend_name=options.settings["state.backend"],
        )

    def _state_directory(self) -> ObjectStorage:
        directory = cast("str", self.options.state_dir)
        options = self.options.settings.storage_options()
        return _opened(os.getpid(), directory, tuple(sorted(options.items())))


@functools.lru_cache(maxsize=16)
def _opened(process: int, directory: str, options: tuple[tuple[str, Any], ...]) -> ObjectStorage:
    """A state directory, once per process: a store over a network keeps its connections."""
    del process
    return open_storage(directory, dict(options))


def _non_empty(batches: Iterator[Any]) -> Iterator[Any]:
    return (batch for batch in batches if batch.num_rows)
