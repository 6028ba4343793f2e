"""`import_tws`: take over a stopped ``transformWithState`` query, state and checkpoint.

Spark reads its own state as tables, which become a version as in `import_state`: the version that
the next batch of the copied checkpoint opens. Both become valid together, when the version and the
copy are complete.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import attrs

from forebay_engine.configuring import resolve_with_plugins
from forebay_engine.execution.arguments import (
    checked_max_parallelism,
    checked_parallelism,
    checked_uid,
)
from forebay_engine.versions.publishing import check_vacant
from forebay_spark_runtime.driver import session as sessions
from forebay_spark_runtime.importing.dataframes import FirstVersionPlan
from forebay_spark_runtime.importing.frames import rows_of
from forebay_spark_runtime.importing.mapping import MappingChoices, taken_states
from forebay_spark_runtime.importing.tws_query import TwsQuery
from forebay_spark_runtime.importing.tws_tables import TwsTables
from forebay_spark_runtime.keyed_operator.key_columns import key_columns
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.plugins import plugins
from forebay_state_api.progress import SILENT, Progress
from forebay_state_api.settings import Settings
from forebay_state_api.storage import open_storage
from forebay_state_api.storage.urls import located, scheme_of
from forebay_state_processor.importing.checkpoint_copy import CheckpointCopy
from forebay_state_processor.importing.declared_states import DeclaredStates
from forebay_state_processor.importing.first_version import Position
from forebay_state_processor.importing.spark_checkpoint import StoppedQuery, watermark_ms_after
from forebay_state_processor.importing.subtask_part import NO_WATERMARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from forebay_engine.versions.publishing import ImportedPart
    from forebay_state_api.contract.object_storage import ObjectStorage


@attrs.frozen(kw_only=True)
class ImportedTws:
    """The result of `import_tws`."""

    query: str
    """The name under which the state is stored: the query's id, or the ``query=`` that was passed.
    """
    uid: str
    version: int
    """The version that the next batch of the copied checkpoint opens."""
    run: str | None
    """The key of the run that made it; ``None`` after a dry run."""
    rows: Mapping[str, int]
    """Spark's variable → the keys with a value, list or map; ``timers`` → the timers."""
    left: Sequence[str]
    """The variables that were left behind."""


def import_tws(
    spark: SparkSession,
    checkpoint: str,
    function: Any,
    *,
    into: str,
    uid: str,
    state_dir: str | None = None,
    states: Mapping[str, str] | None = None,
    ttl: Mapping[str, timedelta] | None = None,
    without: Collection[str] = (),
    without_timers: bool = False,
    query: str | None = None,
    parallelism: int | None = None,
    max_parallelism: int = 128,
    dry_run: bool = False,
    progress: Progress = SILENT,
) -> ImportedTws:
    """Take over a stopped ``transformWithState`` query.

    :param spark: a session of Spark 4.0 or newer; its ``spark.forebay.*`` choose the backend and
        the storage, as for `keyed`.
    :param checkpoint: the ``checkpointLocation`` of the stopped query: a path or a URL. It is only
        read.
    :param function: the function that goes on with the state; it declares which states there are,
        and their types and times to live. Its ``open`` is called.
    :param into: a new location for the copy of the checkpoint.
    :param uid: the ``uid=`` of the operator.
    :param state_dir: the state directory; default: ``spark.forebay.state.dir``.
    :param states: Spark's variable → the state that takes it, where their names differ.
    :param ttl: Spark's variable → its time to live there, where it is not the one that ``function``
        declares. Spark stores only the time at which a value expires.
    :param without: variables that are left behind.
    :param without_timers: leave the timers behind.
    :param query: the ``query=`` of the operator; default: the query's id, which the copy keeps.
    :param parallelism: the number of parts; default: Spark's default parallelism. The query may
        have another.
    :param max_parallelism: the operator's ``max_parallelism=``.
    :param dry_run: check everything, and write nothing.
    :param progress: receives the stages.

    Raises `ConfigurationError` for whatever cannot be taken over, and `FencedError` if something
    else begins to write the operator's state meanwhile; neither version nor copy is there then.
    """
    settings = _settings(spark, state_dir)
    source = open_storage(checkpoint, settings.storage_options())
    copied = CheckpointCopy(source, open_storage(into, settings.storage_options()))
    stopped = StoppedQuery.read(source)
    _check_stopped(spark, stopped)
    found = TwsQuery.read(spark, _for_spark(checkpoint), stopped)
    uid = checked_uid(uid)
    keys = key_columns(found.key, found.key.names, uid)
    declared = DeclaredStates.of(
        copy.deepcopy(function),
        key=keys.stored_type(),
        uid=uid,
        backend=plugins().backend(settings["state.backend"]),
    )
    wanted = MappingChoices(
        states=states or {}, ttl=ttl or {}, without=without, without_timers=without_timers
    )
    taken = taken_states(found, declared, wanted)
    timers = found.domain is not None and declared.has_timers and not without_timers
    tables = TwsTables(found, taken, declared, timers=timers)
    most, parts = _parts(spark, parallelism, max_parallelism, uid)
    position = _position(source, stopped, into)
    plan = FirstVersionPlan(
        declared=declared,
        layouts=tables.frames.layouts,
        state_dir=located(settings.required("state.dir", argument="state_dir")),
        query=query or stopped.query_id,
        uid=uid,
        settings=settings,
        parallelism=parts,
        max_parallelism=most,
        now_us=position.batch_ms * 1_000,
        dry_run=dry_run,
        position=position,
    )
    check_vacant(plan.read.storage, plan.operator.target(parts), uid)
    progress.stage("checking the state" if dry_run else "writing the state")
    with tables.frames.parts(tables.keys, plan) as (answers, written):
        run = None if dry_run else _published(plan, written, copied, progress)
    if run is not None:
        copied.finish()
    rows = rows_of(answers)
    counts = {one.variable: rows.get(one.state, 0) for one in taken}
    if timers:
        counts["timers"] = sum(one.timers for one in answers)
    return ImportedTws(
        query=plan.query,
        uid=uid,
        version=position.version,
        run=run,
        rows=counts,
        left=sorted(without),
    )


def _published(
    plan: FirstVersionPlan,
    parts: Sequence[ImportedPart],
    copied: CheckpointCopy,
    progress: Progress,
) -> str:
    """Copy the checkpoint but for the query's id, and publish the version; return its run's key.

    After a failure there is no copy.
    """
    progress.stage("copying the checkpoint")
    try:
        copied.begin()
        copied.check_unchanged()
        return plan.operator.publish(parts, None)
    except BaseException:
        copied.undo()
        raise


def _settings(spark: SparkSession, state_dir: str | None) -> Settings:
    overrides = {"state.dir": state_dir}
    return resolve_with_plugins(sessions.configuration(spark), overrides=overrides)


def _check_stopped(spark: SparkSession, stopped: StoppedQuery) -> None:
    if any(str(query.id) == stopped.query_id for query in spark.streams.active):
        raise ConfigurationError(
            f"the query {stopped.query_id} runs in this session: stop it, and import again"
        )


def _parts(
    spark: SparkSession, parallelism: int | None, max_parallelism: int, uid: str
) -> tuple[int, int]:
    """Return the numbers of key groups and of parts."""
    most = checked_max_parallelism(max_parallelism, uid)
    if parallelism is None:
        parallelism = min(sessions.default_parallelism(spark), most)
    return most, checked_parallelism(parallelism, most, uid)


def _position(source: ObjectStorage, stopped: StoppedQuery, into: str) -> Position:
    assert stopped.parent_ms is not None  # `TwsQuery.read` refuses a query without batches
    watermark_ms = watermark_ms_after(source, stopped.next_batch - 1)
    return Position(
        version=stopped.next_batch,
        batch_ms=stopped.parent_ms,
        location=_resolved(into),
        watermark_us=watermark_ms * 1_000 if watermark_ms > 0 else NO_WATERMARK,
    )


def _for_spark(location: str) -> str:
    """Return a location as a URL: Spark may take a path for one of another file system."""
    place = located(location)
    return place if scheme_of(place) else f"file://{place}"


def _resolved(location: str) -> str:
    """Return a location as Spark names the checkpoint of a query."""
    place = located(location).rstrip("/")
    return place if scheme_of(place) else f"file:{place}"
