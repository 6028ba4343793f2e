"""Long commands show their progress on a terminal, and nothing of it in a pipe."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from rich.console import Console

from forebay_cli.main import main
from forebay_engine.versions import Checkpoint
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor
from forebay_state_api.plugins import plugins
from forebay_state_api.storage.opening import open_storage
from forebay_testing.job import KeyedJob

OPERATOR = ("--query", "q", "--uid", "op")
LONG = {
    "restore checks": (("recover", *OPERATOR), "comparing with version"),
    "verify": (("lsm", "verify", "{state}"), "reading files"),
    "janitor": (
        ("janitor", *OPERATOR, "--retention", "2", "--min-age", "0s", "--dry-run"),
        "reading manifests",
    ),
    "export": (("state", "export", "{new}.parquet", *OPERATOR), "exporting"),
    "import": (
        ("state", "import", "{table}", "--query", "{name}", "--uid", "op", "--like", "q"),
        "writing",
    ),
    "savepoint": (("savepoint", "create", "{name}", "--query", "q"), "checking files"),
    "schema": (("state", "schema", *OPERATOR), "reading manifests"),
    "skew": (("state", "skew", "--count-keys", *OPERATOR), "counting keys"),
    "history": (("state", "history", "a", *OPERATOR), "reading versions"),
    "diff": (("state", "diff", "--from", "1", "--to", "2", *OPERATOR), "comparing"),
    "diff as JSON": (
        ("state", "diff", "--from", "1", "--to", "2", "--json", *OPERATOR),
        "comparing",
    ),
    "scan": (("state", "scan", *OPERATOR), "scanning"),
    "ls": (("state", "ls"), "reading operators"),
    "bundle": (("bundle", "--output", "{new}.zip"), "operator 1 of "),
}
"""Command → its arguments, and one of the stages that it shows."""


class Adding(KeyedProcessFunction):
    def open(self, context):
        self.sum = context.get_state(ValueStateDescriptor("sum", int, default=0))

    def process_element(self, row, ctx):
        self.sum.update(self.sum.value() + row[1])
        return []


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A state directory whose operator has two timelines, and a table of its state."""
    folder = tmp_path_factory.mktemp("long")
    job = KeyedJob(
        plugins().backend("lsm"),
        open_storage(folder / "state"),
        query="q",
        uid="op",
        parallelism=2,
        key_type=str,
    )
    for _ in range(3):
        job.run(Adding(), [("a", 1), ("b", 1)])
    job.checkpoint = Checkpoint(location="file:/copy", times_ms={})
    job.restart(batch_id=1)
    for _ in range(4):
        job.run(Adding(), [("a", 7)])
    assert run(folder, "export", "table", terminal=False).exit_code == 0
    return folder


def run(folder, command, name, *, terminal):
    """Run a long command, with a terminal or a pipe at stderr."""
    words, _ = LONG[command]
    places = {"state": folder / "state", "table": folder / "table.parquet", "new": folder / name}
    given = [word.format(**places, name=name) for word in words]
    if command != "verify":
        given += ["--state-dir", str(folder / "state")]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Console, "is_terminal", property(lambda one: terminal and one.stderr))
        return CliRunner().invoke(main, given)


@pytest.mark.parametrize("command", LONG)
def test_a_terminal_shows_the_stages_and_a_pipe_does_not(stored, command):
    _, stage = LONG[command]
    piped = run(stored, command, f"{command}-piped".replace(" ", "-"), terminal=False)
    shown = run(stored, command, f"{command}-shown".replace(" ", "-"), terminal=True)
    for result in (piped, shown):
        assert result.exit_code == 0, result.output
        assert stage not in result.stdout
        assert "\x1b" not in result.stdout
    assert stage in shown.stderr
    assert shown.stderr.count("\x1b[2K") > 0, "the line is erased"
    assert stage not in piped.stderr
    assert "\x1b" not in piped.stderr
