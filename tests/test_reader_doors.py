"""Python, Spark and the command line offer the same of stored state, or a reason why not.

A parameter that a function gets, an option of the data source or an option of a command has to be
placed in a table below: with its name at each door, or with the reason why the door has none.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import click
import pytest

from forebay_cli.state.group import state
from forebay_engine.versions.choosing.pins import LEASE
from forebay_spark_runtime import importing as on_spark
from forebay_spark_runtime.data_source.options import NAMES, ReadOptions
from forebay_state_api.settings import BYTES
from forebay_state_processor import importing
from forebay_state_processor.reading import ChangeFeed, Difference, Snapshot, open_feed, open_state
from forebay_state_processor.reading.difference import HELD_BYTES


class Lacks(str):
    """The reason why a door does not have a parameter."""

    __slots__ = ()


Door = str | Lacks
"""The option of a door, or why it has none."""


class Row(NamedTuple):
    spark: Door
    command: Door


IN_CONF = Lacks("settings are options spark.forebay.*")
WHOLE = Lacks("Spark and the commands read a version once: nothing is kept between look-ups")
CRASH = Lacks("the command renews its pin and closes it; only one that is killed leaves it behind")
POSITION = Lacks("startingVersion, and then the checkpoint of the stream")
JOIN = Lacks("it bounds the memory of a join; `state` reads one state without a join")
NO_LOOP = Lacks("a command ends: run it again, or `forebay top` for a running operator")
NEWER = Lacks("the stream goes on to the newest version")
ALWAYS = Lacks("the command compares any two versions, and shows old values")
ALL_NAMESPACES = Lacks("`scan` and `export` show all namespaces")
COLUMNS = Lacks("Spark selects columns of the DataFrame")
TIMERS = Lacks("changes are read of one state; `timers` shows the timers of a version")
WITHIN = Lacks("set by the reader for its tasks")

READING: Mapping[Callable[..., Any], Mapping[str, Row]] = {
    open_state: {
        "state_dir": Row("stateDir", "--state-dir"),
        "query": Row("query", "--query"),
        "uid": Row("uid", "--uid"),
        "version": Row("version", "--version"),
        "run": Row("version", "--version"),
        "provisional": Row("provisional", "--provisional"),
        "show_expired": Row("showExpired", "--show-expired"),
        "follow": Row("changes", NO_LOOP),
        "conf": Row(IN_CONF, "--conf"),
        "cache_bytes": Row(WHOLE, WHOLE),
        "lease": Row("lease", CRASH),
    },
    Snapshot.get_many: {
        "state": Row("state", "--state"),
        "keys": Row("keys", "key"),
        "namespace": Row("namespace", "--namespace"),
    },
    Snapshot.to_arrow: {
        "state": Row("state", "--state"),
        "flat": Row("flat", "--flat"),
        "key_groups": Row("keyGroups", "--key-groups"),
        "keys": Row("keys", "key"),
        "namespace": Row("namespace", ALL_NAMESPACES),
    },
    Snapshot.table: {
        "states": Row(COLUMNS, "--columns"),
        "key_groups": Row("keyGroups", "--key-groups"),
        "keys": Row("keys", "key"),
        "namespace": Row("namespace", ALL_NAMESPACES),
        "join_bytes": Row(JOIN, JOIN),
    },
    Snapshot.timer_table: {"key_groups": Row("keyGroups", "--key-groups")},
}
CHANGES: Mapping[Callable[..., Any], Mapping[str, Row]] = {
    open_feed: {
        "state_dir": Row("stateDir", "--state-dir"),
        "query": Row("query", "--query"),
        "uid": Row("uid", "--uid"),
        "provisional": Row("provisional", "--provisional"),
        "conf": Row(IN_CONF, "--conf"),
    },
    ChangeFeed.after: {
        "position": Row(POSITION, "--from"),
        "most": Row("maxVersionsPerTrigger", NO_LOOP),
        "undo": Row("undo", ALWAYS),
    },
    ChangeFeed.between: {
        "start": Row("startingVersion", "--from"),
        "end": Row(NEWER, "--to"),
        "undo": Row("undo", ALWAYS),
        "show_expired": Row("showExpired", "--show-expired"),
        "cache_bytes": Row(WHOLE, WHOLE),
        "held_bytes": Row("heldBytes", "--held-bytes"),
        "lease": Row("lease", CRASH),
        "part": Row(WITHIN, WITHIN),
    },
    Difference.to_arrow: {
        "state": Row("state", "--state"),
        "old": Row("old", ALWAYS),
        "key_groups": Row("keyGroups", "--key-groups"),
    },
    Difference.key_rows: {
        "state": Row("state", "--state"),
        "key": Row(Lacks("filter the column key"), "--key"),
        "namespace": Row(Lacks("filter the column namespace"), "--namespace"),
    },
    Difference.timers: {"key_groups": Row(TIMERS, "--key-groups")},
}
IMPORTS: Mapping[Callable[..., Any], Mapping[str, Row]] = {
    importing.import_state: {
        "state_dir": Row("state_dir", "--state-dir"),
        "query": Row("query", "--query"),
        "uid": Row("uid", "--uid"),
        "tables": Row("tables", "tables"),
        "timers": Row("timers", "--timers"),
        "function": Row("function", "--function"),
        "key": Row("key", "--key"),
        "like": Row("like", "--like"),
        "max_parallelism": Row("max_parallelism", "--max-parallelism"),
        "savepoint": Row("savepoint", "--savepoint"),
        "dry_run": Row("dry_run", "--dry-run"),
        "conf": Row(Lacks("the session's settings, and backend="), "--conf"),
    },
    importing.replace_state: {
        "state_dir": Row("state_dir", "--state-dir"),
        "query": Row("query", "--query"),
        "uid": Row("uid", "--uid"),
        "checkpoint": Row("checkpoint", "--replace"),
        "tables": Row("tables", "tables"),
        "timers": Row("timers", "--timers"),
        "without_keys": Row("without_keys", "--remove-key"),
        "dry_run": Row("dry_run", "--dry-run"),
        "conf": Row(Lacks("the session's settings"), "--conf"),
    },
}
SPARK_ALONE = {
    "path": "the same as stateDir, as load(path) passes it",
    "changes": "chooses the stream of changes; Python has open_feed",
    "pushdown": "Spark's filters in place of keys",
    "timers": "Python has the method timer_table, the commands --timers",
}
IMPORTS_ON_SPARK_ALONE = {
    "parallelism": "the number of tasks; the other doors write the parts one by one",
    "backend": "a setting of conf at the other doors",
}
COMMAND_ALONE = {
    "--properties-file": "settings, as --conf",
    "--json": "what Python returns as objects",
    "--columns": "the reader of Arrow selects columns",
    "--limit": "an iterator is read as far as wanted",
    "--timers": "Python has methods for timers",
    "--like-uid": "names the snapshot for --like",
    "--all": "for people: versions without a change are left out",
    "--format": "of files",
    "--rows-per-file": "of files",
    "--overwrite": "of files",
    "--checkpoint": "Python has open_next",
    "target": "of files",
}
TABLES = {**READING, **CHANGES, **IMPORTS}
READ_COMMANDS = ("get", "scan", "export", "history", "diff")


def parameters(function: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(function).parameters) - {"self"}


def named(rows: Iterable[Mapping[str, Row]], door: str) -> set[str]:
    found = (getattr(row, door) for table in rows for row in table.values())
    return {one for one in found if not isinstance(one, Lacks)}


def options(*commands: str) -> dict[str, click.Parameter]:
    loaded = [state.commands[name].load() for name in commands]
    return {name: one for command in loaded for one in command.params for name in one.opts}


@pytest.mark.parametrize("function", TABLES, ids=lambda one: one.__qualname__)
def test_every_parameter_of_python_has_its_options(function):
    assert set(TABLES[function]) == parameters(function)


def test_every_option_of_the_data_source_has_its_parameter():
    placed = named([*READING.values(), *CHANGES.values()], "spark")
    assert placed - set(NAMES) == set()
    assert set(NAMES) - placed <= SPARK_ALONE.keys() <= set(NAMES)


@pytest.mark.parametrize("name", ["import_state", "replace_state"])
def test_every_parameter_of_imports_on_spark_has_its_twin(name):
    placed = named([IMPORTS[getattr(importing, name)]], "spark")
    mine = parameters(getattr(on_spark, name))
    assert placed - mine == set()
    assert mine - placed <= IMPORTS_ON_SPARK_ALONE.keys()


@pytest.mark.parametrize(
    ("commands", "tables"),
    [
        (("get", "scan", "export"), READING),
        (("diff",), CHANGES),
        (("import",), IMPORTS),
        (READ_COMMANDS, {**READING, **CHANGES}),
    ],
    ids=["reading", "changes", "imports", "all"],
)
def test_every_option_of_a_command_has_its_parameter(commands, tables):
    placed = named(tables.values(), "command")
    mine = set(options(*commands))
    assert placed - mine == set()
    assert mine - placed <= COMMAND_ALONE.keys()


def test_no_reason_is_left_over():
    every = set(options(*READ_COMMANDS, "import"))
    assert every >= COMMAND_ALONE.keys()
    assert parameters(on_spark.import_state) >= IMPORTS_ON_SPARK_ALONE.keys()


def test_the_doors_have_the_same_defaults():
    held = options("diff")["--held-bytes"]
    assert BYTES.accept(held.default) == HELD_BYTES
    assert inspect.signature(ChangeFeed.between).parameters["held_bytes"].default == HELD_BYTES
    defaults = {one.name: one.default for one in ReadOptions.__attrs_attrs__}
    assert (defaults["held_bytes"], defaults["lease"]) == (HELD_BYTES, LEASE)
    assert inspect.signature(open_state).parameters["lease"].default == LEASE
