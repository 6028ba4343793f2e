"""What the driver's session says: its settings, its parallelism, which micro-batch this is."""

from __future__ import annotations

import sys
import uuid
from typing import Any, Final

import attrs
from pyspark.sql import functions as F  # noqa: N812 - the customary name

from forebay_state_api.errors import ConfigurationError
from forebay_state_api.settings import PREFIX

_FOREACH_BATCH_WORKER: Final = "foreach_batch_worker"
_SPECULATION: Final = "spark.speculation"

PROCESS_RUN: Final = str(uuid.uuid4())
"""Stands for the run of a query in the process that serves its ``foreachBatch`` under Connect."""


@attrs.frozen(kw_only=True)
class MicroBatch:
    """A micro-batch, as far as it is known."""

    query: str | None = None
    """The name under which state is found."""
    batch_id: int | None = None
    run_id: str | None = None
    """What Spark calls the run: ``spark.jobGroup.id``."""
    spark_query: str | None = None
    """What Spark calls the query, whatever name the user gave."""


def is_connect(session: Any) -> bool:
    """Whether the session belongs to Spark Connect."""
    return ".connect." in type(session).__module__


def configuration(session: Any) -> dict[str, str]:
    """The settings that matter here of the session, those of the application included."""
    conf = session.conf
    if hasattr(type(conf), "getAll"):
        return {key: value for key, value in dict(conf.getAll).items() if _matters(key)}
    # SET gives the keys only: where a key or a value looks like a secret, it blots out the value.
    keys = [row.key for row in session.sql("SET").collect() if _matters(row.key)]
    return {key: conf.get(key) for key in keys}


def _matters(key: str) -> bool:
    return key.startswith(PREFIX) or key == _SPECULATION


def default_parallelism(session: Any) -> int:
    """Spark's default parallelism; under Connect the partitions that ``range`` gets from it."""
    if not is_connect(session):
        parallelism: int = session.sparkContext.defaultParallelism
        return parallelism
    partitions = session.range(1 << 15).select(F.spark_partition_id()).distinct()
    return int(partitions.count())


def current_batch(session: Any) -> MicroBatch:
    """The micro-batch whose ``foreachBatch`` function runs on this thread, outside Connect."""
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
    """Whether this process is the one that runs ``foreachBatch`` functions for Spark Connect."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and _FOREACH_BATCH_WORKER in spec.name


def refuse_speculation(session: Any, given: dict[str, str]) -> None:
    """Two attempts of one task at a time could both become the version."""
    value = given.get(_SPECULATION)
    if value is None and not is_connect(session):
        value = session.sparkContext.getConf().get(_SPECULATION, "false")
    if str(value).lower() == "true":
        message = (
            "spark.speculation is on: two copies of a task would make one version of the state at "
            "the same time. Set spark.speculation=false for applications with keyed state"
        )
        raise ConfigurationError(message)
