"""The names under which operators are observed, and two operators of one uid in a query.

Figures are observed under the uid, which users look for. Spark does not compare them; see
`observed_figures`. A second operator of a uid is refused here: where its input already has one of
that uid, and when a query starts, by a mark in its session that its tasks read.
"""

# ruff: noqa: SLF001 - pyspark has no public way to what its JVM knows

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame

from forebay_engine.versions.choosing.fencing import duplicate_uid_error
from forebay_spark_runtime.driver.session import is_connect

SAME_UID: Final = "spark.sql.forebay.sameUid"
"""Set in the session of a query with two operators of one uid; the value is the uid."""

_ID: Final = "[0-9a-f-]{36}"
_PREFIX: Final = "forebay:"
_ROWS: Final = re.compile(f"{_PREFIX}(.+):({_ID})", re.DOTALL)
_IN_PLAN: Final = re.compile(f"CollectMetrics forebay:(.+):({_ID}),")


def rows_name(uid: str, keyed_uuid: str) -> str:
    """Return the name under which an operator's input is observed: another one for each call."""
    return f"{_PREFIX}{uid}:{keyed_uuid}"


def figures_name(uid: str) -> str:
    """Return the name under which an operator's figures are observed: the same at every start."""
    return f"{_PREFIX}{uid}"


def observed_id(name: str) -> str | None:
    """Return the ``keyed_uuid`` in the name of an observed input; ``None`` for other names."""
    found = _ROWS.fullmatch(name)
    return found and found[2]


def uid_of_figures(name: str) -> str | None:
    """Return the uid if ``name`` is the name of observed figures; ``None`` for users' names.

    Whether it is the name of an observed input instead, only what was observed shows.
    """
    return name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else None


def operators_in(plan: str) -> list[tuple[str, str]]:
    """Return the (uid, ``keyed_uuid``) of each operator in the text of a plan."""
    return _IN_PLAN.findall(plan)


def uid_of_two(plan: str) -> str | None:
    """Return a uid that two operators in the text of a plan have; ``None`` if all differ."""
    return _twice([uid for uid, _ in set(operators_in(plan))])


def _twice(uids: Sequence[str]) -> str | None:
    return next((uid for uid in uids if uids.count(uid) > 1), None)


def refuse_uid_twice(inputs: Iterable[DataFrame], uid: str) -> None:
    """Raise `ConfigurationError` if a new operator of ``uid`` would bring a uid twice into a query.

    Streams come from operators of its inputs. Spark Connect has no plan to read here: there the
    tasks refuse the second operator.
    """
    made = set[tuple[str, str]]()
    for df in inputs:
        if not df.isStreaming or is_connect(df.sparkSession):
            return
        java: Any = df._jdf
        made.update(operators_in(java.queryExecution().analyzed().toString()))
    if (twice := _twice([uid, *(one for one, _ in made)])) is not None:
        raise duplicate_uid_error(twice)
