"""``forebay top``: its screen in terminals of all sizes, its JSON, and a real terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from datetime import UTC, datetime
from io import StringIO

import pytest
from click.testing import CliRunner
from rich.console import Console
from rich.screen import Screen

from forebay_cli.live.phase_bars import phase_bar
from forebay_cli.live.top import _Live, top
from forebay_cli.live.top_screen import TopScreen
from forebay_engine.versions.format import layout
from forebay_engine.versions.format.figures import COUNTS, Figures
from forebay_state_api.contract.object_storage import ObjectInfo
from forebay_state_api.errors import ConfigurationError, StorageError
from forebay_state_api.storage.forwarding import ForwardingStorage
from forebay_state_api.storage.opening import open_storage
from forebay_state_processor.observing import (
    DirectoryWatch,
    OperatorListing,
    OperatorView,
    StoredOperator,
)
from forebay_testing.committing_job import coordinates

PATIENCE_S = 100
FIGURES = {
    "rows_in": 1_500,
    "rows_out": 20,
    "keys": 7,
    "group_rows": [900, 0, 600, 0],
    "phase_seconds": {"input": 0.2, "function": 0.6, "commit_files": 0.2},
}


@pytest.fixture
def stored(make_committing_job, tmp_path):
    """A state directory with two operators of one query."""
    make_committing_job(uid="visits").versions(803, 813, metrics=FIGURES)
    make_committing_job(uid="sessions").versions(1, 2, metrics={"rows_in": 3})
    return tmp_path


def screen(directory, fault=""):
    root = open_storage(directory)
    return TopScreen(
        url=root.url,
        views=DirectoryWatch(root).views(),
        now=datetime.now(UTC),
        fault=fault,
        fits=True,
    )


def drawn(shown, width, height, **console):
    """The lines of a screen in a terminal of that size."""
    terminal = Console(width=width, height=height, force_terminal=True, **console)
    lines = terminal.render_lines(Screen(shown), terminal.options)
    return ["".join(segment.text for segment in line) for line in lines]


@pytest.mark.parametrize("height", [60, 24, 10, 3])
def test_it_fits_every_terminal(stored, height):
    shown = screen(stored)
    for width in (200, 120, 80, 60, 40, 20):
        lines = drawn(shown, width, height)
        assert len(lines) == height
        assert all(len(line) == width for line in lines)
        assert lines[0].startswith("forebay top")
        assert any("visits" in line for line in lines[:5]) or height < 4


def test_a_wide_terminal_shows_more_columns(stored):
    wide, narrow = (drawn(screen(stored), width, 30)[1].split() for width in (130, 50))
    assert wide == [
        *("query", "uid", "batch", "ago", "rows/s", "out/s", "state", "growth", "keys", "files"),
        *("runs", "compactions", "pins"),
    ]
    assert narrow == ["uid", "batch", "ago", "rows/s", "state"]


def test_a_bar_has_the_letters_of_its_phases_without_colours_too(stored):
    lines = drawn(screen(stored), 100, 60, no_color=True)
    bar = next(line for line in lines if line.strip().startswith("812"))
    counted = {letter: bar.count(letter) for letter in "IFW"}
    assert counted["F"] == pytest.approx(3 * counted["I"], abs=2)
    assert counted["W"] == pytest.approx(counted["I"], abs=1)
    assert "3k rows, subtask 0" in bar
    assert any("I input  F function  W commit_files" in line for line in lines)


def test_hot_key_groups_and_what_is_not_known(stored):
    text = "\n".join(drawn(screen(stored), 150, 60))
    assert "key groups with most rows, in subtask 0: 0 (60 %), 2 (40 %)" in text
    said = "not known of this version: group_rows_max, keys_touched, timers_added, "
    assert said in text, "an older release made it"
    assert "times were not measured" in text, "the other operator has no times"


def test_what_the_backend_alone_does_not_report(make_committing_job, tmp_path):
    known = dict.fromkeys(COUNTS, 1)
    del known["runs_max"]
    make_committing_job().version(1, metrics=known)
    text = "\n".join(drawn(screen(tmp_path), 150, 60))
    assert "not reported by the backend toy: runs_max" in text


def test_how_long_reads_took_by_state(make_committing_job, tmp_path):
    reads = {"n": {"141": 90, "189": 9, "236": 1}}
    make_committing_job().version(1, metrics={"rows_in": 1, "state_access_seconds": reads})
    text = "\n".join(drawn(screen(tmp_path), 150, 60))
    assert "reads of state, in subtask 0: n 1 ms p50, 1 ms p90, 10 ms p99" in text


def test_what_requests_cost(make_committing_job, tmp_path, invoke):
    counted = {"get": 1, "list": 3, "put": 3, "delete": 0}
    make_committing_job().version(1, metrics={"storage_requests": counted})
    text = "\n".join(drawn(screen(tmp_path), 150, 60))
    assert "requests of a micro-batch: 12 puts and lists, 2 gets" in text
    (found,) = json.loads(invoke(top, "--state-dir", tmp_path, "--once", "--json"))
    assert (found["requests"]["puts_and_lists"], found["requests"]["gets"]) == (12, 2)


def test_what_calls_were_made_and_answered(make_committing_job, tmp_path):
    counted = {"call_tries": 40, "call_answered": 7, "call_kept_bytes": 3_000, "call_dropped": 0}
    job = make_committing_job()
    job.version(1, metrics={"rows_in": 1})
    assert "calls of the newest" not in "\n".join(drawn(screen(tmp_path), 150, 60))
    job.version(2, metrics=counted)
    text = "\n".join(drawn(screen(tmp_path), 150, 60))
    said = "calls of the newest micro-batch: 80 made, 14 answered by what an earlier attempt kept, "
    assert said + "6 kB of answers kept" in text


def test_operators_without_room_are_counted(stored):
    lines = drawn(screen(stored), 80, 14)
    assert any(line.startswith("… 1 more: enlarge the window") for line in lines)


def test_a_refresh_that_failed_says_why(stored):
    lines = drawn(screen(stored, fault="the bucket is gone"), 80, 20)
    assert "not refreshed: the bucket is gone" in lines[1]
    assert any("visits" in line for line in lines), "the numbers before stay"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConfigurationError("the bucket\nis gone"), "the bucket is gone"),
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
    ],
)
def test_whatever_stops_a_refresh_is_shown(stored, error, text):
    class Failing:
        def refresh(self):
            live._ended.set()
            raise error

    live = _Live(Failing(), screen(stored), 0.001)
    live._refresh()
    assert (live._screen.fault, live._read.is_set()) == (text, True)


class Partial:
    """A watch that cannot read one of the two operators."""

    def __init__(self, root, **_):
        self.problems, self.unlisted = {}, {}
        self.found = DirectoryWatch(root).views()

    def views(self):
        (one,) = (one for one in self.found if one.uid == "sessions")
        self.problems = {one: StorageError("Access\nDenied")}
        return {other: view for other, view in self.found.items() if other != one}


PROBLEM = "operator sessions of query clicks: Access Denied"


def test_an_operator_that_cannot_be_read_is_named_on_the_screen(stored):
    class Refreshed(Partial):
        def refresh(self):
            live._ended.set()
            return self.views()

    live = _Live(Refreshed(open_storage(stored)), screen(stored), 0.001)
    live._refresh()
    assert live._screen.fault == PROBLEM
    lines = drawn(live._screen, 80, 20)
    assert lines[1].startswith(f"not refreshed: {PROBLEM}")
    assert any("visits" in line for line in lines), "the other operator is shown"


def test_an_operator_that_cannot_be_read_is_named_once_too(stored, monkeypatch):
    monkeypatch.setattr("forebay_cli.live.top.DirectoryWatch", Partial)
    arguments = ["--state-dir", str(stored), "--once"]
    printed = CliRunner().invoke(top, arguments)
    assert (printed.exit_code, printed.stderr) == (0, f"not read: {PROBLEM}\n")
    assert "visits" in printed.stdout
    written = CliRunner().invoke(top, [*arguments, "--json"])
    assert written.stderr == printed.stderr
    sessions, visits = json.loads(written.stdout)
    assert sessions == {"query": "clicks", "uid": "sessions", "problem": "Access Denied"}
    assert (visits["version"], visits["problem"]) == (813, None)


@pytest.fixture
def first_screens(monkeypatch):
    """The screens that live views begin with."""
    shown = []
    terminal = Console(force_terminal=True, file=StringIO())
    monkeypatch.setattr("forebay_cli.live.top.console", lambda: terminal)
    monkeypatch.setattr(_Live, "run", lambda live, _: shown.append(live._screen))
    return shown


def test_the_first_live_screen_names_what_could_not_be_read(
    stored, invoke, first_screens, monkeypatch
):
    monkeypatch.setattr("forebay_cli.live.top.DirectoryWatch", Partial)
    invoke(top, "--state-dir", stored)
    lines = drawn(*first_screens, 80, 20)
    assert lines[1].startswith(f"not refreshed: {PROBLEM}")
    assert any("visits" in line for line in lines)


def test_storage_that_fails_before_the_first_live_screen_ends_it(
    stored, invoke, first_screens, monkeypatch
):
    storage = Burning(open_storage(stored))
    monkeypatch.setattr("forebay_cli.live.top.state_directory", lambda *_: storage)
    with pytest.raises(StorageError, match="the store is on fire"):
        invoke(top, "--state-dir", stored)
    assert first_screens == []


class Burning(ForwardingStorage):
    """Fails every request."""

    def around(self, operation, name, request):
        raise StorageError("the store is on fire")


class Unlistable(ForwardingStorage):
    """Cannot list the operators of one query."""

    def list_folders(self, prefix=""):
        if prefix == "carts":
            raise StorageError("Access\nDenied")
        return self.inner.list_folders(prefix)


def test_a_query_that_cannot_be_listed_is_named(stored, make_committing_job, monkeypatch):
    make_committing_job("carts").version(1)
    storage = Unlistable(open_storage(stored))
    monkeypatch.setattr("forebay_cli.live.top.state_directory", lambda *_: storage)
    problem = "operators of query carts: Access Denied"
    arguments = ["--state-dir", str(stored), "--once"]
    printed = CliRunner().invoke(top, arguments)
    assert (printed.exit_code, printed.stderr) == (0, f"not read: {problem}\n")
    assert "sessions" in printed.stdout
    carts, sessions, visits = json.loads(CliRunner().invoke(top, [*arguments, "--json"]).stdout)
    assert carts == {"query": "carts", "uid": None, "problem": "Access Denied"}
    assert (sessions["problem"], visits["problem"]) == (None, None)
    watch = DirectoryWatch(storage)
    live = _Live(watch, screen(stored), 0.001)
    monkeypatch.setattr(live._read, "set", live._ended.set)
    live._refresh()
    assert live._screen.fault == problem


@pytest.mark.long
def test_many_versions_and_key_groups_are_quick():
    begun = datetime(2026, 1, 1, tzinfo=UTC)
    figures = Figures({"rows_in": 10**6}, {"input": 3_000, "function": 2_000})
    stored = []
    for version in range(10, 0, -1):
        for subtask in range(500):
            made = coordinates(version, subtask, 500, 10_000)
            name = layout.manifest_name(made, 1, 7, figures)
            stored.append(ObjectInfo(name=name, size=7, modified=begun))
    listing = OperatorListing(objects={"versions": stored})
    began = time.process_time()
    view = OperatorView(listing=listing, timeline=listing.timeline, read_busiest=lambda: None)
    one = StoredOperator.named("q", "op")
    drawn(TopScreen(url="s3://b", views={one: view}, now=begun, fits=True), 160, 50)
    assert time.process_time() - began < 10.0  # a busy machine stays below it


def test_json_for_scripts(stored, invoke):
    found = json.loads(invoke(top, "--state-dir", stored, "--once", "--json"))
    assert [one["uid"] for one in found] == ["sessions", "visits"]
    visits = found[1]
    assert (visits["query"], visits["version"], visits["backend"]) == ("clicks", 813, "toy")
    assert (visits["parallelism"], visits["max_parallelism"]) == (2, 8)
    assert visits["hot_key_groups"]["rows"] == {"0": 900, "2": 600}
    assert (visits["state_bytes"], visits["keys"], visits["runs_max"]) == (200, 14, None)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", visits["versions"][0]["committed"])
    assert visits["compactions"] == {"pending": 0, "running": 0}
    assert visits["pins"] == {"readers": 0, "savepoints": [], "forks": 0}
    assert [one["batch"] for one in visits["versions"]] == list(range(812, 802, -1))
    assert visits["versions"][0]["slowest_phase_ms"]["function"] == 600
    assert visits["versions"][0]["phase_ms"]["function"] == 1_200


def test_once_prints_everything_uncut(stored, invoke):
    printed = invoke(top, "--state-dir", stored, "--once", "--query", "clicks")
    assert printed.count("key groups with most rows") == 1
    assert "… " not in printed
    assert invoke(top, "--state-dir", stored, "--once", "--uid", "visits").count("sessions") == 0


def test_wrong_use_is_explained(stored, invoke, tmp_path_factory):
    assert "add --once" in invoke(top, "--state-dir", stored, status=2)
    assert "add --once" in invoke(top, "--state-dir", stored, "--json", status=2)
    with pytest.raises(ConfigurationError, match="no such operator in"):
        invoke(top, "--state-dir", tmp_path_factory.mktemp("empty"), "--once")


def test_a_bar_s_columns_add_up():
    for width in range(1, 40):
        bar = phase_bar({"input": 1, "open": 1, "function": 1, "rest": 1}, width)
        assert len(bar) == width
    assert phase_bar({"input": 3, "function": 7}, 10).plain == "IIIFFFFFFF"


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, *command, columns, lines):
        self.leader, follower = pty.openpty()
        self.resize(columns, lines)
        environment = {**os.environ, "TERM": "xterm"}
        for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CI"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            command, stdin=follower, stdout=follower, stderr=follower, env=environment
        )
        os.close(follower)
        self.text = ""

    def resize(self, columns, lines):
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self.leader, termios.TIOCSWINSZ, size)

    def until(self, pattern):
        """Read until the terminal has got a text since the last call."""
        until, seen = time.monotonic() + PATIENCE_S, ""
        while not re.search(pattern, seen):
            assert time.monotonic() < until, seen
            try:
                seen += os.read(self.leader, 65_536).decode(errors="replace")
            except OSError:  # Linux, when the process has exited
                break
        assert re.search(pattern, seen), seen
        return seen

    def end(self):
        self.process.send_signal(signal.SIGINT)
        rest = self.until(r"\x1b\[\?1049l")
        status = self.process.wait(PATIENCE_S)
        os.close(self.leader)
        return status, rest


@pytest.mark.long
def test_on_a_real_terminal_that_is_resized(stored, make_committing_job):
    # A shell that starts the tests in the background lets its children ignore SIGINT.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "from forebay_cli.main import main; main()"
    terminal = Terminal(
        *(sys.executable, "-c", code, "top", "--state-dir", str(stored), "--interval", "200ms"),
        columns=130,
        lines=40,
    )
    try:
        first = terminal.until("key groups with most rows")
        assert "compactions" in first
        make_committing_job(uid="visits").version(814, metrics=FIGURES)
        terminal.until(" 813 ")
        terminal.resize(50, 20)
        terminal.until(r"\x1b\[1muid[^\r\n]*batch[^\r\n]*state")
    finally:
        status, _ = terminal.end()
    assert status == 0
