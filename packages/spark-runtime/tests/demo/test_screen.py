"""The texts that the demo prints."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from forebay_spark_runtime.demo.check import Carried, Departure
from forebay_spark_runtime.demo.directory import DemoDirectory
from forebay_spark_runtime.demo.kill import Kill
from forebay_spark_runtime.demo.manifest_numbers import StateSummary
from forebay_spark_runtime.demo.screen import BatchSummary, Screen

DUE = datetime(2013, 7, 1, 12, tzinfo=UTC)
FLIGHTS = [
    Departure(number, DUE, "UA", 1, "N1", "JFK", dest, 30, 30)
    for number, dest in enumerate(["BOS", "IAH", "MIA"])
]
CARRIED = [Carried("N1", 1, 30, 1, 30, 30), Carried("N1", 2, 30, 2, 60, 60)]
STATE = StateSummary(version=1, subtasks=2, keys=4037, size=198_000, opening_s=0.034)


@pytest.fixture
def shown():
    text = io.StringIO()
    return Screen(Console(file=text, width=80, highlight=False)), text.getvalue


def test_the_result_is_a_table(shown):
    screen, text = shown
    screen.result(CARRIED, FLIGHTS, {"UA": "United Air Lines Inc."})
    lines = [line.split() for line in text().splitlines()]
    assert ["N1", "United", "Air", "Lines", "Inc.", "2", "60", "01", "Jul", "2013", "60"] in lines


def test_a_result_without_any_chain_is_shown_too(shown):
    screen, text = shown
    screen.result([], FLIGHTS, {})
    assert "longest chains" in text()


def test_a_batch_is_a_line(shown):
    screen, text = shown
    screen.batch(BatchSummary(number=12, rows=27_004, seconds=2, state=STATE))
    said = "Jan 2014: 27,004 flights in 2.00 s; version 1: 4,037 aircraft, 198 kB, 2 subtask(s), "
    assert text() == f"{said}opened in 0.034 s\n"


def test_a_restore_and_a_rescale_are_shown(shown):
    screen, text = shown
    screen.restoring(STATE, 12, 4)
    assert "Restored version 1 of an earlier run in this directory: 4,037 aircraft" in " ".join(
        text().split()
    )
    assert "the state of 2 subtask(s) is opened by 4" in text()


def test_kills_are_shown_and_so_is_their_absence(shown):
    screen, text = shown
    screen.killed([Kill(3, [11, 12], frozenset({7}))])
    assert "version 3: worker processes 11, 12; 1 task attempt(s) lost" in " ".join(text().split())
    screen.killed([])
    assert "No kill hit" in text()


def test_the_command_to_go_on_looking_can_be_pasted(shown, tmp_path, monkeypatch):
    screen, text = shown
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "env" / "forebay"
    script.parent.mkdir()
    script.touch()
    screen.look_again(DemoDirectory(tmp_path / "my demo"), script)
    screen.look_again(DemoDirectory(tmp_path / "demo"), Path("-c"))
    assert text().splitlines() == [
        "",
        "Go on looking: env/forebay console --state-dir 'my demo/state'",
        "",
        "Go on looking: forebay console --state-dir demo/state",
    ]
