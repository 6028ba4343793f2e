"""The names under which operators are observed, unique for each operator that is made.

Spark refuses two observations of one name in a plan, with a text of its own. So each operator that
is made has names of its own, and a second operator of a uid is refused here: where its input
already has one of that uid, and when a query starts, by a mark in its session that its tasks read.
"""

# ruff: noqa: SLF001 - pyspark has no public way to what its JVM knows

from __future__ import annotations

import re
from typing import Any, Final

from pyspark.sql import DataFrame

from forebay_engine.versions.choosing.fencing import duplicate_uid_error
from forebay_spark_runtime.driver.session import is_connect

SAME_UID: Final = "spark.sql.forebay.sameUid"
"""Set in the session of a query with two operators of one uid; the value is the uid."""

_ID: Final = "[0-9a-f-]{36}"
_ROWS: Final = re.compile(f"forebay:(.+):({_ID})", re.DOTALL)
_FIGURES: Final = re.compile(f"forebay:(.+):{_ID}:figures", re.DOTALL)
_IN_PLAN: Final = re.compile(f"CollectMetrics forebay:(.+):({_ID}),")


def rows_name(uid: str, keyed_uuid: str) -> str:
    """Return the name under which an operator's input is observed."""
    return f"forebay:{uid}:{keyed_uuid}"


def figures_name(uid: str, keyed_uuid: str) -> str:
    """Return the name under which an operator's figures are observed."""
    return f"{rows_name(uid, keyed_uuid)}:figures"


def observed_id(name: str) -> str | None:
    """Return the ``keyed_uuid`` in the name of an observed input; ``None`` for other names."""
    found = _ROWS.fullmatch(name)
    return found and found[2]


def uid_of_figures(name: str) -> str | None:
    """Return the uid in the name of observed figures; ``None`` for other names."""
    found = _FIGURES.fullmatch(name)
    return found and found[1]


def operators_in(plan: str) -> list[tuple[str, str]]:
    """Return the (uid, ``keyed_uuid``) of each operator in the text of a plan."""
    return _IN_PLAN.findall(plan)


def uid_of_two(plan: str) -> str | None:
    """Return a uid that two operators in the text of a plan have; ``None`` if all differ."""
    uids = [uid for uid, _ in set(operators_in(plan))]
    return next((uid for uid in uids if uids.count(uid) > 1), None)


def refuse_uid_in(df: DataFrame, uid: str) -> None:
    """Raise `ConfigurationError` if a stream comes from an operator of this uid.

    Spark Connect has no plan to read here: there the tasks refuse the second operator.
    """
    if not df.isStreaming or is_connect(df.sparkSession):
        return
    java: Any = df._jdf
    if uid in (one for one, _ in operators_in(java.queryExecution().analyzed().toString())):
        raise duplicate_uid_error(uid)
