"""Reads the driver's session: its settings, its default parallelism, the current micro-batch."""

# ruff: noqa: SLF001 - pyspark has no public way that takes few calls

from __future__ import annotations

import functools
import logging
import sys
import uuid
from typing import Any, Final

import attrs
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the customary name

from forebay_state_api.errors import ConfigurationError
from forebay_state_api.settings import PREFIX

_log = logging.getLogger(__name__)

_FOREACH_BATCH_WORKER: Final = "foreach_batch_worker"
_SPECULATION: Final = "spark.speculation"
_REUSE: Final = "spark.python.worker.reuse"

PROCESS_RUN: Final = str(uuid.uuid4())
"""The run's id in the process that serves a query's ``foreachBatch`` under Spark Connect."""


@attrs.frozen(kw_only=True)
class MicroBatch:
    """A micro-batch; fields that are not known are ``None``."""

    query: str | None = None
    """The name or id under which the query's state is stored."""
    batch_id: int | None = None
    run_id: str | None = None
    """Spark's id of the run: ``spark.jobGroup.id``."""
    spark_query: str | None = None
    """Spark's id of the query, even if the user gave the query another name."""


def is_connect(session: Any) -> bool:
    """Return whether the session belongs to Spark Connect."""
    return ".connect." in type(session).__module__


def configuration(session: Any) -> dict[str, str]:
    """Return the session's settings for Forebay, including the application's."""
    conf = session.conf
    if is_connect(session) and hasattr(type(conf), "getAll"):
        return {key: value for key, value in conf.getAll.items() if _matters(key)}
    return {key: conf.get(key) for key in _names(session) if _matters(key)}


def _names(session: Any) -> list[str]:
    """Return the names of all settings that have a value in the session."""
    if is_connect(session):
        # Use only the keys of SET: it redacts values where a key or a value looks like a secret.
        return [row.key for row in session.sql("SET").collect()]
    # In one text: py4j asks the JVM for each element of a collection.
    names: str = session.conf._jconf.getAll().keySet().mkString("\n")
    return names.split("\n")


def _matters(key: str) -> bool:
    return key.startswith(PREFIX) or key in (_SPECULATION, _REUSE)


def with_plan(df: DataFrame, plan: Any) -> DataFrame:
    """Return the DataFrame of a logical plan of the JVM, in the session of ``df``."""
    session: Any = df.sparkSession
    dataset = _dataset(session._jvm, df._jdf.getClass().getName())
    return DataFrame(dataset.ofRows(session._jsparkSession, plan), session)


@functools.lru_cache(maxsize=1)
def _dataset(jvm: Any, name: str) -> Any:
    """Return the companion of ``Dataset``, which has another package from Spark 4.0 on."""
    return functools.reduce(getattr, name.split("."), jvm)


def time_zone(session: Any) -> str:
    """Return the setting ``spark.sql.session.timeZone``."""
    return str(session.conf.get("spark.sql.session.timeZone"))


def default_parallelism(session: Any) -> int:
    """Return Spark's default parallelism.

    Under Connect it is found by counting the partitions of a ``range``, which runs a small job.
    """
    if not is_connect(session):
        parallelism: int = session.sparkContext.defaultParallelism
        return parallelism
    partitions = session.range(1 << 15).select(F.spark_partition_id()).distinct()
    return int(partitions.count())


def current_batch(session: Any) -> MicroBatch:
    """Return the micro-batch whose ``foreachBatch`` function runs on this thread.

    Its fields are ``None`` outside such a function, and under Spark Connect.
    """
    if is_connect(session):
        return MicroBatch()
    read = session.sparkContext.getLocalProperty
    batch_id = read("streaming.sql.batchId")
    if batch_id is None:
        return MicroBatch()
    query = read("sql.streaming.queryId")
    return MicroBatch(
        query=query, batch_id=int(batch_id), run_id=read("spark.jobGroup.id"), spark_query=query
    )


def in_connect_foreach_batch() -> bool:
    """Return whether this process runs ``foreachBatch`` functions for Spark Connect."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and _FOREACH_BATCH_WORKER in spec.name


def refuse_speculation(session: Any, given: dict[str, str]) -> None:
    """Raise `ConfigurationError` if speculative execution is on.

    Two concurrent attempts of one task could both commit the version. ``given`` is the result of
    `configuration`.
    """
    if _of_application(session, given, _SPECULATION, "false") == "true":
        raise ConfigurationError(
            "spark.speculation is on: two copies of a task would make one version of the state at "
            "the same time. Set spark.speculation=false for applications with keyed state"
        )


def warn_unless_workers_stay(session: Any, given: dict[str, str]) -> None:
    """Log a warning if each task has a Python worker of its own; once in a process.

    ``given`` is the result of `configuration`.
    """
    if _of_application(session, given, _REUSE, "true") == "false":
        _warn_of_single_use()


@functools.cache
def _warn_of_single_use() -> None:
    _log.warning(
        "%s is false: each task of an operator with state begins without the state of the batch "
        "before, waits until its compactions are done or at a gateway, and for the janitor. Set it "
        "to true, as it is by default",
        _REUSE,
    )


def _of_application(session: Any, given: dict[str, str], key: str, default: str) -> str:
    value = given.get(key)
    if value is None and not is_connect(session):
        value = session.sparkContext._conf.get(key, default)
    return str(value or default).lower()
