"""``forebay ticks``: the offset log of a stopped query."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from forebay_spark_runtime.plugin import forebay_commands
from forebay_spark_runtime.ticks_command import ticks_command

HEAD = 'v1\n{"batchWatermarkMs":0}'
FILE = '{"logOffset":3}'
FIRST = '{"forebayTick": 0}'


@pytest.fixture
def offsets(tmp_path):
    """The folder of the offset log, with three batches and the sums of Hadoop's local files."""
    folder = tmp_path / "offsets"
    folder.mkdir()
    for batch in ("8", "9", "10"):
        (folder / batch).write_text(f"{HEAD}\n{FILE}")
        (folder / f".{batch}.crc").write_bytes(b"crc")
    return folder


def run(offsets, operators, *options):
    arguments = [str(offsets.parent), "--operators", str(operators), *options]
    return CliRunner().invoke(ticks_command, arguments)


def entries(offsets):
    return {path.name: path.read_text().splitlines()[2:] for path in offsets.glob("[0-9]*")}


def test_the_command_is_offered_with_its_own_help():
    lazy = next(one for one in forebay_commands() if one.name == "ticks")
    loaded = lazy.load()
    assert loaded is ticks_command
    assert lazy.get_short_help_str(1_000) == loaded.get_short_help_str(1_000)


def test_the_last_two_entries_get_and_lose_ticks(offsets):
    assert "batch 9 and 10: the operators with ticks are 2 now" in run(offsets, 2).output
    assert entries(offsets) == {"8": [FILE], "9": [FILE, FIRST, FIRST], "10": [FILE, FIRST, FIRST]}
    assert sorted(path.name for path in offsets.glob(".*")) == [".8.crc"]
    assert "nothing was changed" in run(offsets, 2).output
    assert json.loads(run(offsets, 0, "--json").output) == {"batches": [9, 10], "operators": 0}
    assert entries(offsets) == {batch: [FILE] for batch in ("8", "9", "10")}


def test_a_command_that_was_killed_between_the_entries_is_repeated(offsets):
    (offsets / "9").write_text(f"{HEAD}\n{FILE}\n{FIRST}")
    assert "batch 10: " in run(offsets, 1).output
    assert entries(offsets)["10"] == [FILE, FIRST]


def test_an_entry_that_cannot_follow_leaves_both_as_they_were(offsets):
    (offsets / "10").write_text(f"{HEAD}\n{FILE}\n{FIRST}\n{FILE}")
    before = entries(offsets)
    result = run(offsets, 0)
    assert f"the query of {offsets.parent}: it has a source behind" in str(result.exception)
    assert entries(offsets) == before


def test_what_is_no_checkpoint(tmp_path):
    result = run(tmp_path / "offsets", 1)
    assert "it has no offset log" in str(result.exception)
