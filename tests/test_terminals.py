"""No control character of a key, a value, a name or an argument reaches a terminal as it is."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from forebay_cli.lazy import LazyCommand
from forebay_cli.main import main
from forebay_state_api import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.plugins import plugins
from forebay_testing import FunctionHarness

pytestmark = pytest.mark.long

RAW = ("\x1b]52;c;cm0=", "\x07", "\x9b2J", "\u202e", "\u2066", "\rEVIL")
"""Writes the clipboard; rings; clears the screen; reads backwards, twice; overwrites the line."""
HOSTILE = f"ann{''.join(RAW)}"
ESCAPED = r"ann\x1b]52;c;cm0=\x07\x9b2J\u202e\u2066\rEVIL"
OF_OPERATOR = ("--query", HOSTILE, "--uid", HOSTILE)
COMMANDS: dict[str, Sequence[str]] = {
    "lsm inspect": (f"DIR/{HOSTILE}",),
    "lsm verify": (f"DIR/{HOSTILE}",),
    "compaction doctor": ("--gateway", HOSTILE),
    "answers drop": (HOSTILE, "--state-dir", "DIR", *OF_OPERATOR),
    "compaction drain": ("--gateway", HOSTILE),
    "compaction endpoints add": (HOSTILE, "--conf", f"spark.forebay.{HOSTILE}=1"),
    "compaction endpoints list": ("--conf", f"spark.forebay.{HOSTILE}=1"),
    "compaction endpoints remove": (HOSTILE, "--conf", f"spark.forebay.{HOSTILE}=1"),
    "compaction scale": (HOSTILE, "--gateway", "x"),
    "compaction start": ("--storage", "x", "--slots", HOSTILE),
    "compaction status": ("--gateway", HOSTILE),
    "compaction stop": ("--gateway", HOSTILE),
    "plugins": (HOSTILE,),
    "config": ("--conf", f"spark.forebay.state.dir=/{HOSTILE}"),
    "state diff": ("--from", "0", "--provisional", "--state-dir", "DIR"),
    "state export": (f"NEW/{HOSTILE}.{HOSTILE}", "--provisional", "--state-dir", "DIR"),
    "state get": (HOSTILE, "--provisional", "--state-dir", "DIR"),
    "state history": (HOSTILE, "--provisional", "--state-dir", "DIR"),
    "state import": (f"state={HOSTILE}.csv", "--state-dir", "DIR", *OF_OPERATOR),
    "state ls": ("--state-dir", "DIR"),
    "state scan": ("--provisional", "--state-dir", "DIR"),
    "state schema": ("--provisional", "--state-dir", "DIR", *OF_OPERATOR),
    "state skew": ("--state-dir", "DIR", "--query", HOSTILE, "--uid", f"{HOSTILE}x"),
    "top": ("--once", "--state-dir", "DIR"),
    "explain": ("--state-dir", "DIR"),
    "bundle": ("--state-dir", "DIR", *OF_OPERATOR, "--output", f"NEW/{HOSTILE}/none.zip"),
    "janitor": ("--state-dir", "DIR", "--query", HOSTILE, "--uid", f"{HOSTILE}x"),
    "doctor": ("--state-dir", HOSTILE),
    "savepoint create": (HOSTILE, "--state-dir", "DIR", *OF_OPERATOR),
    "savepoint delete": (f"{HOSTILE}x", "--state-dir", "DIR", *OF_OPERATOR),
    "savepoint list": ("--state-dir", "DIR"),
    "recover": ("--state-dir", "DIR", *OF_OPERATOR, "--choose", HOSTILE),
    "demo": ("--months", HOSTILE),
    "import-tws": (HOSTILE, "--into", "x", "--state-dir", "y", "--uid", "u", "--function", HOSTILE),
    "ticks": (HOSTILE, "--operators", "1"),
    "simulate": ("--seed", HOSTILE),
    "console": ("--state-dir", HOSTILE, "--port", "0"),
}
"""Arguments for every command: those that have data show it, the others name it in an error."""
SEQUENCE = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]|\r(?!\n)")
CHILD = """
import json, logging, sys
from forebay_cli.main import main
for arguments in json.load(open(sys.argv[1])):
    print(f"<<<{json.dumps(arguments)}>>>")
    try:
        main(arguments)
    except SystemExit:
        pass
    sys.stdout.flush(); sys.stderr.flush()
hostile = json.load(open(sys.argv[1]))[0][-1]
print("<<<[\\"log\\"]>>>")
logging.getLogger("forebay_state_api").warning("a key: %s", hostile)
print("<<<[\\"exit\\"]>>>")
sys.stdout.write("\\x1b[0m")  # as colorama does
print("\\x1b[0m" + hostile)
print("<<<[\\"traceback\\"]>>>")
raise RuntimeError(hostile)
"""


class Visits(KeyedProcessFunction):
    def open(self, context):
        self.name = context.get_state(ValueStateDescriptor(HOSTILE, str))
        self.seen = context.get_list_state(ListStateDescriptor(f"{HOSTILE} seen", str))
        self.pages = context.get_map_state(MapStateDescriptor("pages", str, str))

    def process_element(self, row, ctx):
        self.name.update(row[0])
        self.seen.add(row[0])
        self.pages.put(row[0], row[0])
        ctx.set_current_namespace(HOSTILE)
        self.name.update(row[0])
        return []


@pytest.fixture(scope="module", params=["heap", pytest.param("lsm", marks=pytest.mark.slow)])
def state_dir(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("state")
    where = {"state_dir": str(directory), "query": HOSTILE, "uid": HOSTILE}
    with FunctionHarness(
        Visits(), lambda row: row[0], key_type=str, backend=request.param, **where
    ) as harness:
        harness.process([(HOSTILE,)])
        harness.process([])
    return directory


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    if isinstance(command, LazyCommand):
        command = command.load()
    if not isinstance(command, click.Group):
        yield " ".join(path)
        return
    for name in command.list_commands(click.Context(command)):
        found = command.get_command(click.Context(command), name)
        assert found is not None
        yield from leaves(found, (*path, name))


def on_terminal(arguments: Sequence[Sequence[str]], folder: Path, **variables: str) -> str:
    """Run commands in one process whose stdout and stderr are a terminal; return what it shows."""
    script = folder / "arguments.json"
    script.write_text(json.dumps([[HOSTILE], *arguments]), encoding="utf-8")
    terminal, end = pty.openpty()
    environment = {**os.environ, "COLUMNS": "200", "TERM": "xterm", **variables}
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(script)],
        stdout=end,
        stderr=end,
        env=environment,
        cwd=folder,
    ):
        os.close(end)
        shown = b""
        while True:
            try:
                part = os.read(terminal, 65_536)
            except OSError:  # Linux's word for the end
                part = b""
            if not part:
                break
            shown += part
    os.close(terminal)
    return shown.decode()


def test_every_command_has_an_entry():
    assert sorted(COMMANDS) == sorted(
        leaf for name, command in plugins().commands().items() for leaf in leaves(command, (name,))
    )


def test_nothing_that_a_terminal_obeys_comes_from_data(state_dir, tmp_path):
    commands = []
    for name, arguments in COMMANDS.items():
        given = [
            one.replace("NEW", str(tmp_path)).replace("DIR", str(state_dir)) for one in arguments
        ]
        commands.append([*name.split(), *given])
    commands.append(["state", "scan", "--json", "--provisional", "--state-dir", str(state_dir)])
    shown = on_terminal(commands, tmp_path).split("<<<")[1:]
    parts = {tuple(json.loads(one.partition(">>>")[0])): one.partition(">>>")[2] for one in shown}
    assert len(parts) == len(commands) + 4
    for command, text in parts.items():
        assert [raw for raw in RAW if raw in text] == [], command
    for command in commands[:-1]:
        flat = "".join(parts[tuple(command)].split())
        assert r"\x1b]52;c;cm0" in flat, (command, flat)
    assert r"\u001b]52;c;cm0=" in parts[tuple(commands[-1])]
    assert ESCAPED in parts["log",]
    assert parts["exit",].replace("\r\n", "\n").strip() == "\x1b[0m" + r"\x1b[0m" + ESCAPED
    assert ESCAPED in parts["traceback",]


def test_nor_on_a_terminal_that_is_said_to_be_ascii(state_dir, tmp_path):
    command = ["state", "scan", "--json", "--provisional", "--state-dir", str(state_dir)]
    shown = on_terminal([command], tmp_path, PYTHONIOENCODING="ascii")
    assert [raw for raw in RAW if raw in shown] == []
    assert r"\x9b2J\u202e" in shown


def test_columns_are_as_wide_as_what_is_shown(state_dir, tmp_path):
    command = ["state", "scan", "--state", "pages", "--provisional", "--state-dir", str(state_dir)]
    shown = SEQUENCE.sub("", on_terminal([command], tmp_path))
    (row,) = [line for line in shown.split("\r\n") if line.startswith(ESCAPED)]
    head = next(line for line in shown.split("\r\n") if "namespace" in line)
    assert row.index("-") == head.index("namespace")


@pytest.mark.parametrize("command", ["scan", "get"])
def test_a_pipe_of_json_has_what_is_stored(state_dir, command):
    key = (HOSTILE,) if command == "get" else ()
    arguments = ["state", command, *key, "--provisional", "--json", "--state-dir", str(state_dir)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout if key else result.stdout.split("\n")[0])
    assert found["key"] == HOSTILE


def test_nothing_is_padded_in_a_pipe(state_dir):
    result = CliRunner().invoke(
        main, ["state", "scan", "--provisional", "--state-dir", str(state_dir)]
    )
    head, *rows = result.stdout.splitlines()
    assert head.split("\t")[:3] == ["key", "namespace", "key_group"]
    assert [row.split("\t")[0] for row in rows] == [ESCAPED, ESCAPED]
    assert not any(line != line.rstrip() or "  " in line for line in [head, *rows])
    top = CliRunner().invoke(main, ["top", "--once", "--state-dir", str(state_dir)])
    assert not any(line != line.rstrip() for line in top.stdout.splitlines())
