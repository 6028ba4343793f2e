"""Every stored object, damaged in every way: a reader shows what it did, or names the object."""

from __future__ import annotations

import itertools
import json
import shutil
from datetime import timedelta
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner

from forebay_cli.main import main
from forebay_engine.stored.restore import default_options
from forebay_engine.versions import RestoreFrom
from forebay_engine.versions.choosing.finality import mark_final
from forebay_engine.versions.choosing.savepoints import create_savepoint
from forebay_engine.versions.cleaning.janitor import Janitor
from forebay_state_api import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.errors import ForebayError
from forebay_state_api.plugins import plugins
from forebay_state_api.storage.opening import open_storage
from forebay_state_processor.reading import START, open_feed, open_state
from forebay_testing import KeyedJob

NAMES = {"query": "query", "uid": "operator"}
ROWS = [(key, 1) for key in "abcd"]


class Keep(KeyedProcessFunction):
    def open(self, context):
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))
        self.seen = context.get_list_state(ListStateDescriptor("seen", int))
        self.by_day = context.get_map_state(MapStateDescriptor("by day", str, int))

    def process_element(self, row, ctx):
        self.count.update(self.count.value() + 1)
        self.seen.add(self.count.value())
        self.by_day.put("monday", self.count.value())
        ctx.timers.register_processing_time(ctx.timers.processing_time + timedelta(days=900))
        yield row[0], self.count.value()

    def on_timer(self, at, ctx):
        pass


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path):
    path.write_bytes(b"")


def flip(path):
    data, middle = bytearray(path.read_bytes()), path.stat().st_size // 2
    data[middle] ^= 1
    path.write_bytes(data)


DAMAGES = (cut, empty, flip, Path.unlink)


@attrs.frozen
class Stored:
    """A state directory that was written once, with what its readers show of it."""

    backend: str
    folder: Path

    def job(self, folder, **how):
        backend = plugins().backend(self.backend)
        storage, options = open_storage(str(folder)), default_options(backend)
        return KeyedJob(backend, storage, key_type=str, parallelism=2, options=options, **how)

    def objects(self):
        return sorted(p.relative_to(self.folder) for p in self.folder.rglob("*") if p.is_file())

    def shown(self, reader, folder):
        """Return what a reader shows, or its error as text; other exceptions are faults."""
        try:
            return READERS[reader](self, folder), ""
        except ForebayError as error:
            return None, str(error)


def snapshot(stored, folder, **how):
    with open_state(str(folder), **NAMES, **how) as found:
        rows = {name: sorted(map(repr, found.scan(name))) for name in found.states}
        timers = sorted(map(repr, found.timers()))
        return found.version, found.final, found.get_many("count", [*"abcd"]), rows, timers


def feed(stored, folder):
    found = open_feed(str(folder), **NAMES)
    positions = found.after(START)
    shown = []
    for start, end in itertools.pairwise([START, *positions]):
        with found.between(start, end) as difference:
            shown.append((end, sorted(repr(row) for row in difference.rows("count"))))
    return shown


def job(stored, folder):
    going_on = stored.job(folder)
    going_on.batch_id = 8
    return sorted(going_on.run(Keep(), ROWS))


def fork(stored, folder):
    restore = RestoreFrom("query", savepoint="kept")
    return sorted(stored.job(folder, query="fork", restore=restore).run(Keep(), ROWS))


def command(*arguments, shows=True):
    def run(stored, folder):
        found = CliRunner().invoke(main, [*arguments, "--state-dir", str(folder)])
        if found.exit_code == 2:
            raise ForebayError(found.output)
        assert found.exit_code == 0, repr(found.exception)
        return found.output if shows else None

    return run


ONE = ("--query", "query", "--uid", "operator")
READERS = {
    "open_state": snapshot,
    "open_state of a version": lambda *at: snapshot(*at, version=6),
    "open_state of a savepoint": lambda *at: snapshot(*at, version="kept"),
    "open_feed": feed,
    "job": job,
    "fork": fork,
    "state get": command("state", "get", "a", *ONE),
    "state scan": command("state", "scan", *ONE),
    "state history": command("state", "history", "a", "--all", *ONE),
    "state diff": command("state", "diff", "--from", "6", "--to", "8", *ONE),
    "state schema": command("state", "schema", "--sizes", *ONE),
    "state skew": command("state", "skew", "--count-keys", *ONE),
    "state ls": command("state", "ls", shows=False),
    "savepoint list": command("savepoint", "list", shows=False),
    "savepoint create": command("savepoint", "create", "new", "--query", "query", shows=False),
    "savepoint delete": command("savepoint", "delete", "kept", "--query", "query", shows=False),
    "recover": command("recover", *ONE, shows=False),
    "janitor": command("janitor", "--min-age", "0s", "--retention", "2", *ONE, shows=False),
    "explain": command("explain", *ONE, shows=False),
    "top": command("top", "--once", shows=False),
}


@pytest.fixture(scope="module", params=["heap", pytest.param("lsm", marks=pytest.mark.slow)])
def stored(request, tmp_path_factory):
    stored = Stored(request.param, tmp_path_factory.mktemp("stored"))
    made = stored.job(stored.folder)
    for batch in range(8):
        if batch == 3:
            made.restart()
        made.run(Keep(), ROWS)
    at_once = timedelta(seconds=-100)
    Janitor(made.storage, run_key=made.run_key, retention=3, min_age=at_once).sweep(8)
    create_savepoint(made.storage, "kept", uid="operator", version=6)
    mark_final(made.storage, 8, made.run_key)
    return stored


def names(damaged, damage):
    """Return the texts of which an error has one."""
    name = damaged.relative_to("query/operator").as_posix()
    if damage is Path.unlink and damaged.name.startswith("manifest"):
        attempt = damaged.name.split("-")[:9]  # what its marker knows of its name
        return [name, f"{damaged.parent.relative_to('query/operator')}/{'-'.join(attempt)}"]
    if name == "savepoints/kept":
        return [name, "has no savepoint 'kept'"]
    return [name]


def may_show_less(reader, damaged, damage):
    """Return whether a reader cannot know that something is missing, as recover.md says."""
    if damaged.parts[2] == "final":
        return damage is Path.unlink  # version 8 is not final then
    older = damaged.name.startswith("manifest") and "fffffffffff7" not in damaged.parts
    return reader == "open_feed" and older and damage is not flip


SLOW = [pytest.param(number, 30, marks=pytest.mark.slow) for number in range(30)]


@pytest.mark.long
@pytest.mark.parametrize(("part", "of"), [(0, 97), *SLOW])
def test_an_error_names_the_object(stored, tmp_path, part, of):
    """Tries a part of all objects, damages and readers, by default a small one."""
    intact = {}
    every = itertools.product(stored.objects(), DAMAGES, READERS)
    errors = 0
    for number, (damaged, damage, reader) in enumerate(every):
        if number % of != part:
            continue
        folder = tmp_path / str(number)
        shutil.copytree(stored.folder, folder)
        if reader not in intact:
            intact[reader] = stored.shown(reader, shutil.copytree(stored.folder, tmp_path / reader))
        damage(folder / damaged)
        found, error = stored.shown(reader, folder)
        about = f"{reader} with {damaged} after {damage.__name__}: {error or found}"
        if error:
            errors += 1
            assert any(name in error for name in names(damaged, damage)), about
        elif not may_show_less(reader, damaged, damage):
            assert str(found).replace(str(folder), "") == str(intact[reader][0]).replace(
                str(tmp_path / reader), ""
            ), about
        shutil.rmtree(folder)
    assert errors  # how many depends on the order of random names


def run(folder, *arguments):
    return CliRunner().invoke(main, ["state", *arguments, "--state-dir", str(folder)])


def of_version(folder, version, pattern):
    part = f"{(1 << 48) - 1 - version:012x}"
    return next(one for one in sorted(folder.rglob(pattern)) if part in one.parts)


@pytest.mark.long
@pytest.mark.parametrize(
    ("pattern", "damage"),
    [
        ("manifest-*", cut),
        ("manifest-*", Path.unlink),
        ("manifest-*", flip),
        ("heap-*", Path.unlink),
    ],
)
def test_history_shows_the_other_versions_and_the_damage(stored, tmp_path, pattern, damage):
    if stored.backend != "heap":
        pytest.skip("names the files of heap")
    folder = shutil.copytree(stored.folder, tmp_path / "state")
    damaged = of_version(folder, 7, pattern)
    damage(damaged)
    shown = run(folder, "history", "a", "--all", "--json")
    assert shown.exit_code == 2
    versions = [json.loads(line)["version"] for line in shown.stdout.splitlines()]
    assert {5, 6} <= set(versions)
    assert 7 not in versions
    assert any(name in shown.stderr for name in names(damaged.relative_to(folder), damage))


@pytest.mark.parametrize("damage", [cut, Path.unlink])
def test_history_shows_the_versions_below_a_damaged_newest_one(stored, tmp_path, damage):
    folder = shutil.copytree(stored.folder, tmp_path / "state")
    damaged = of_version(folder, 8, "manifest-*")
    damage(damaged)
    shown = run(folder, "history", "a", "--all", "--json")
    assert shown.exit_code == 2
    versions = [json.loads(line)["version"] for line in shown.stdout.splitlines()]
    assert versions == [5, 6, 7]
    assert any(name in shown.stderr for name in names(damaged.relative_to(folder), damage))


@pytest.mark.parametrize("option", [(), ("--json",)])
def test_history_with_nothing_but_damage(tmp_path, option):
    stored = Stored("heap", tmp_path / "state")
    stored.job(stored.folder).run(Keep(), ROWS)
    damaged = of_version(stored.folder, 1, "heap-*")
    damaged.write_bytes(damaged.read_bytes() + b"\0")
    shown = run(stored.folder, "history", "a", "--provisional", *option)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert damaged.name in shown.stderr


def test_a_damaged_operator_does_not_hide_the_others(tmp_path):
    stored = Stored("heap", tmp_path / "state")
    for query in ("damaged", "whole"):
        stored.job(stored.folder, query=query).run(Keep(), ROWS)
    (record,) = (stored.folder / "damaged" / "operator" / "runs").iterdir()
    record.unlink()
    shown = run(stored.folder, "ls")
    assert shown.exit_code == 2
    assert [line.split()[:4] for line in shown.stdout.splitlines()[1:]] == [
        ["damaged", "operator", "1..1", "damaged"],
        ["whole", "operator", "1..1", "-"],
    ]
    assert f"runs/{record.name}" in shown.stderr
