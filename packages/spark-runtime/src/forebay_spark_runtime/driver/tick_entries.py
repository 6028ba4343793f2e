"""Ticks in the offset log: a query begins and ceases to have them at a restart.

Spark accepts a checkpoint only with as many sources as the query has. Before it reads the offset
log of a query that starts, the listener adds the source of ticks to the log's last two entries, or
takes it out of them: an uncommitted micro-batch is read with the entry before it. Each entry is
replaced atomically, and its own content decides what is done, so that a start after a kill between
the two completes it.

Spark numbers sources in the order of the plan, and file sources and Kafka store what they have read
under that number. A source behind the ticks gets another one, so what it has stored is copied
first. The newest entry, which is replaced last, decides which copy is read; then the other one is
deleted.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from forebay_state_api.errors import ConfigurationError

_log = logging.getLogger(__name__)

AT: Final = "forebayTick"
"""The only field of an offset of ticks."""

NAME: Final = "forebay-ticks"
"""The name of the source of ticks."""

_FIRST: Final = json.dumps({AT: 0})
_BY_NUMBER: Final = "v2"
"""The format in which each offset has the number of its source."""


@attrs.frozen
class Changed:
    """An entry that has the ticks of a plan."""

    text: str
    moved: dict[int, int]
    """The number of a source that is not one of ticks → its number in the plan, if another."""


def follow_plan(execution: Any, jvm: Any) -> None:
    """Let the last entries of a query's offset log have the sources of its plan.

    ``execution`` is Spark's ``StreamExecution``, which has not read its log yet. Logs an error, and
    changes nothing, where that is not possible: Spark then refuses the checkpoint, for which `why`
    has an error.
    """
    try:
        log = execution.offsetLog()
        latest = log.getLatestBatchId()
        if latest.isEmpty():
            return
        leaves = _leaves(execution.analyzedPlan())
        newest = int(latest.get())
        entries = {batch: _changed(log, batch, leaves) for batch in (newest - 1, newest)}
        last = entries[newest]
        copied = _copied(execution, jvm, last.moved, leaves) if last and last.moved else []
        for batch, entry in entries.items():
            if entry is not None:
                _replace(log, batch, entry.text)
                _log.info("query %s: ticks of batch %d follow its plan", execution.id(), batch)
        for files, path in copied:
            files.delete(path, True)  # noqa: FBT003 - Java's recursive
    except Exception as error:  # noqa: BLE001 - py4j raises many kinds, and Spark checks the log
        _log.error("query %s: its offset log was not changed: %s", execution.id(), error)


def with_sources(entry: str, sources: Sequence[bool]) -> Changed | None:
    """Return an entry of the log for a plan; ``None`` if its ticks are the plan's already.

    Also ``None`` if its sources have names: then Spark itself accepts a plan with others.
    ``sources`` has for each source of the plan whether it is one of ticks. Raises
    `ConfigurationError` if another source came or went.
    """
    head, offsets = _read(entry)
    if offsets is None:
        return None
    if list(map(_is_tick, offsets)) == list(sources):
        return None
    ticks = [offset for offset in offsets if _is_tick(offset)]
    others = [(number, offset) for number, offset in enumerate(offsets) if not _is_tick(offset)]
    if len(others) != len(sources) - sum(sources):
        raise ConfigurationError(
            f"its checkpoint has {len(others)} sources besides those of ticks=, and the query "
            f"{len(sources) - sum(sources)}. A restart may add or remove ticks=, and no other "
            "source: start it with the sources of its checkpoint, or begin with a new checkpoint "
            "and restore_from="
        )
    left, more = iter(others), iter(ticks)
    moved, given = {}, []
    for number, is_tick in enumerate(sources):
        if is_tick:
            given.append(next(more, _FIRST))
            continue
        before, offset = next(left)
        given.append(offset)
        if number != before:
            moved[before] = number
    return Changed(_written(head, given), moved)


def with_ticks_last(entry: str, ticks: int) -> str | None:
    """Return an entry with ``ticks`` sources of ticks, the last ones; ``None`` if it has them.

    Raises `ConfigurationError` if sources have names, or if ticks in it come before other sources.
    """
    _, offsets = _read(entry)
    if offsets is None:
        raise ConfigurationError(
            "its sources have names: Spark itself lets those of ticks= come and go at a restart"
        )
    others = sum(not _is_tick(offset) for offset in offsets)
    changed = with_sources(entry, [False] * others + [True] * ticks)
    if changed is None:
        return None
    if changed.moved:
        raise ConfigurationError(
            "it has a source behind those of ticks=, which would get another number, under which "
            "Spark stores what it has read. On classic Spark the query's start moves that too"
        )
    return changed.text


def _read(entry: str) -> tuple[list[str], list[str] | None]:
    """Return the version and the metadata of an entry, and the offsets of sources without names."""
    version, metadata, *lines = entry.rstrip("\n").split("\n")
    return [version, metadata], _by_number(lines) if version == _BY_NUMBER else lines


def _written(head: Sequence[str], offsets: Sequence[str]) -> str:
    if head[0] == _BY_NUMBER:
        offsets = [f"{number}:{offset}" for number, offset in enumerate(offsets)]
    return "\n".join([*head, *offsets])


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


def _leaves(plan: Any) -> list[Any]:
    """Return the sources of a plan, in the order of the offset log."""
    found = []
    leaves = plan.collectLeaves().iterator()
    while leaves.hasNext():
        leaf = leaves.next()
        if leaf.getClass().getSimpleName().startswith("Streaming"):
            found.append(leaf)
    return found


def _changed(log: Any, batch: int, leaves: Sequence[Any]) -> Changed | None:
    path = log.batchIdToPath(batch)
    if batch < 0 or not log.fileManager().exists(path):
        return None
    stream = log.fileManager().open(path)
    try:
        entry = bytes(stream.readAllBytes()).decode()
    finally:
        stream.close()
    return with_sources(entry, [leaf.toString() == NAME for leaf in leaves])


def _copied(
    execution: Any, jvm: Any, moved: Mapping[int, int], leaves: Sequence[Any]
) -> list[tuple[Any, Any]]:
    """Copy what a source has stored under its number to its number in the plan.

    Returns the copied folders, with their file systems. They stay, because the log refers to them
    until its newest entry is replaced. So only one source that has stored something can get another
    number.
    """
    if any(one.equals(other) for one, other in itertools.combinations(leaves, 2)):
        raise _moved_error("one of them is in the plan twice, with one number")
    folder = f"{execution.resolvedCheckpointRoot()}/sources"
    path = jvm.org.apache.hadoop.fs.Path
    conf = execution.sparkSession().sessionState().newHadoopConf()
    files = path(folder).getFileSystem(conf)
    stored = [number for number in moved if files.exists(path(folder, str(number)))]
    if len(stored) > 1:
        raise _moved_error(f"{len(stored)} of them have stored what they have read")
    for number in stored:
        source, target = path(folder, str(number)), path(folder, str(moved[number]))
        files.delete(target, True)  # noqa: FBT003 - Java's recursive
        keep = False
        if not jvm.org.apache.hadoop.fs.FileUtil.copy(files, source, files, target, keep, conf):
            raise OSError(f"{source.toString()} was not copied to {target.toString()}")
    return [(files, path(folder, str(number))) for number in stored]


def _moved_error(reason: str) -> ConfigurationError:
    return ConfigurationError(
        "the sources behind those of ticks= would get other numbers, under which Spark stores what "
        f"they have read, and {reason}. Join or unite other inputs before keyed(), or put the "
        "operator's output last, in a union behind a repartition(); or begin with a new checkpoint "
        "and restore_from="
    )


def _replace(log: Any, batch: int, entry: str) -> None:
    path = log.batchIdToPath(batch)
    out = log.fileManager().createAtomic(path, True)  # noqa: FBT003 - Java's overwriteIfPossible
    try:
        out.write(bytearray(entry.encode()))
    except BaseException:
        out.cancel()
        raise
    out.close()
