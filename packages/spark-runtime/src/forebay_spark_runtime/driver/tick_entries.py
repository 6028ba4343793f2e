"""Ticks in the offset log: a query begins and ceases to have them at a restart.

Spark accepts a checkpoint only with as many sources as the query has. Before it reads the offset
log of a query that starts, the listener adds the source of ticks to the log's last two entries, or
takes it out of them: an uncommitted micro-batch is read with the entry before it. Each entry is
replaced atomically, and its own content decides what is done, so that a start after a kill between
the two completes it. An entry is left alone if any source but that of ticks would change.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any, Final

from forebay_state_api.errors import ConfigurationError

_log = logging.getLogger(__name__)

AT: Final = "forebayTick"
"""The only field of an offset of ticks."""

NAME: Final = "forebay-ticks"
"""The name of the source of ticks."""

_FIRST: Final = json.dumps({AT: 0})
_BY_NUMBER: Final = "v2"
"""The format in which each offset has the number of its source."""


def follow_plan(execution: Any) -> None:
    """Let the last entries of a query's offset log have the sources of its plan.

    ``execution`` is Spark's ``StreamExecution``, which has not read its log yet.
    """
    try:
        sources = _sources(execution.analyzedPlan())
        log = execution.offsetLog()
        latest = log.getLatestBatchId()
        newest = -1 if latest.isEmpty() else int(latest.get())
        for batch in (newest - 1, newest):
            if batch >= 0:
                _follow(execution, log.fileManager(), batch, sources)
    except Exception as error:  # noqa: BLE001 - py4j raises many kinds, and Spark checks the log
        _log.error("query %s: its offset log was not changed: %s", execution.id(), error)


def with_sources(entry: str, sources: Sequence[bool]) -> str | None:
    """Return an entry of the log for a plan; ``None`` if its ticks are the plan's already.

    Also ``None`` if its sources have names: then Spark itself accepts a plan with others.
    ``sources`` has for each source of the plan whether it is one of ticks. Raises
    `ConfigurationError` if another source would change, or its number, under which Spark stores
    what the source has read.
    """
    version, metadata, *lines = entry.rstrip("\n").split("\n")
    numbered = version == _BY_NUMBER
    offsets = _by_number(lines) if numbered else lines
    if offsets is None:
        return None
    others = [offset for offset in offsets if not _is_tick(offset)]
    ticks = [offset for offset in offsets if _is_tick(offset)]
    wanted = sum(sources)
    if len(ticks) == wanted:
        return None
    in_plan = len(sources) - wanted
    if len(others) != in_plan or offsets != [*others, *ticks] or any(sources[:in_plan]):
        raise ConfigurationError(
            "a query begins or ceases to have ticks= at a restart only if they are its last source "
            "and its other sources stay. Join or unite other inputs before keyed(), or put the "
            "operator's output last, in a union behind a repartition(); or begin with a new "
            "checkpoint and restore_from="
        )
    given = [*others, *(ticks + [_FIRST] * wanted)[:wanted]]
    if numbered:
        given = [f"{number}:{offset}" for number, offset in enumerate(given)]
    return "\n".join([version, metadata, *given])


def _by_number(lines: Sequence[str]) -> list[str] | None:
    """Return offsets in the order of their sources; ``None`` if the sources have names."""
    found = dict(line.split(":", 1) for line in lines)
    numbers = [str(number) for number in range(len(found))]
    return [found[number] for number in numbers] if set(found) == set(numbers) else None


def _is_tick(offset: str) -> bool:
    try:
        fields = json.loads(offset)
    except ValueError:
        return False
    return isinstance(fields, dict) and list(fields) == [AT]


def _sources(plan: Any) -> list[bool]:
    """Return for each source of a plan, in the order of the offset log, whether it is of ticks."""
    found = []
    leaves = plan.collectLeaves().iterator()
    while leaves.hasNext():
        leaf = leaves.next()
        if leaf.getClass().getSimpleName().startswith("Streaming"):
            found.append(leaf.toString() == NAME)
    return found


def _follow(execution: Any, files: Any, batch: int, sources: Sequence[bool]) -> None:
    path = execution.offsetLog().batchIdToPath(batch)
    if not files.exists(path):
        return
    stream = files.open(path)
    try:
        entry = bytes(stream.readAllBytes()).decode()
    finally:
        stream.close()
    if (changed := with_sources(entry, sources)) is None:
        return
    out = files.createAtomic(path, True)  # noqa: FBT003 - Java's overwriteIfPossible
    try:
        out.write(bytearray(changed.encode()))
    except BaseException:
        out.cancel()
        raise
    out.close()
    begins = "begins" if any(sources) else "ceases"
    _log.info("query %s %s to have ticks, from batch %d", execution.id(), begins, batch)
