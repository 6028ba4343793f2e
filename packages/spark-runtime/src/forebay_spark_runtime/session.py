"""What the driver's session says: its settings, whether it is Spark Connect, which batch this is."""

from __future__ import annotations

import sys
from typing import Any, Final

from forebay_state_api.errors import ConfigurationError

_FOREACH_BATCH_WORKER: Final = "foreach_batch_worker"


def is_connect(session: Any) -> bool:
    """Whether the session belongs to Spark Connect."""
    return ".connect." in type(session).__module__


def configuration(session: Any) -> dict[str, str]:
    """All settings of the session, those of the application included."""
    conf = session.conf
    if hasattr(type(conf), "getAll"):
        return dict(conf.getAll)
    return {row.key: row.value for row in session.sql("SET").collect()}


def local_property(session: Any, name: str) -> str | None:
    """A local property of the driver's thread: set while ``foreachBatch`` calls back."""
    if is_connect(session):
        return None
    value: str | None = session.sparkContext.getLocalProperty(name)
    return value


def in_connect_foreach_batch() -> bool:
    """Whether this process is the one that runs ``foreachBatch`` functions for Spark Connect."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and _FOREACH_BATCH_WORKER in spec.name


def refuse_speculation(session: Any, given: dict[str, str]) -> None:
    """Two attempts of one task at a time could both become the version."""
    value = given.get("spark.speculation")
    if value is None and not is_connect(session):
        value = session.sparkContext.getConf().get("spark.speculation", "false")
    if str(value).lower() == "true":
        message = (
            "spark.speculation is on: two copies of a task would make one version of the state at "
            "the same time. Set spark.speculation=false for applications with keyed state"
        )
        raise ConfigurationError(message)
