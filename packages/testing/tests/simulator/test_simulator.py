"""The simulator finds nothing in what is built, finds what is planted, and repeats itself."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time

import pytest

from forebay_testing.simulator.choices import Choices, parsed, text_of
from forebay_testing.simulator.oracle import Violation
from forebay_testing.simulator.playing import play, shrink
from forebay_testing.simulator.shrinking import shrunk

from .protocol_faults import FAULTS, FIRST, HIDDEN

pytestmark = pytest.mark.long

SEEDS = 20
"""Played by default; `tox -e simulate` plays for an hour."""
TRIES = 60
"""The most seeds from `FIRST` on within which a default run finds a planted fault."""
AT_MOST_S = 600
"""One core finds all planted faults but the hidden ones in this time, from seed 0 on."""


def test_no_promise_is_broken():
    for seed in range(SEEDS):
        played = play(seed)
        assert played.violation is None, "\n".join(played.trace.lines())


def first_that_breaks(seeds):
    return next((one for one in map(play, seeds) if one.violation is not None), None)


@pytest.mark.parametrize("fault", FIRST)
def test_a_planted_fault_is_found(monkeypatch, fault):
    FAULTS[fault](monkeypatch)
    first = FIRST[fault]
    assert first_that_breaks(range(first, first + TRIES))


@pytest.mark.slow
@pytest.mark.timeout(2 * AT_MOST_S)
def test_planted_faults_are_found_from_seed_0():
    began = time.monotonic()
    for fault in sorted(FAULTS.keys() - HIDDEN):
        with pytest.MonkeyPatch.context() as patch:
            FAULTS[fault](patch)
            assert first_that_breaks(itertools.count()), fault
    assert time.monotonic() - began < AT_MOST_S


PRINTS = """
import logging
logging.disable(logging.WARNING)
from forebay_testing.simulator.playing import play
print(*(play(seed).trace.digest for seed in (3, 4)))
"""


def test_a_seed_has_one_trace_in_every_process():
    def printed(hash_seed):
        done = subprocess.run(
            [sys.executable, "-c", PRINTS],
            env={"PYTHONHASHSEED": hash_seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split()

    here = [play(seed).trace.digest for seed in (3, 4)]
    assert printed("1") == printed("2") == here


def test_decisions_repeat_a_seed():
    played = play(5)
    again = play(5, decisions=parsed(played.text))
    assert again.trace.digest == played.trace.digest


def test_a_failing_seed_is_shrunk_and_still_fails(monkeypatch):
    FAULTS["numbers_have_gaps"](monkeypatch)
    failed = next(one for one in (play(seed, steps=100) for seed in range(20)) if one.violation)
    small = shrink(failed, steps=100, most=40)
    assert small.violation.kind == failed.violation.kind
    assert sum(map(bool, small.decisions)) < sum(map(bool, failed.decisions)) / 2
    again = play(failed.seed, steps=100, decisions=parsed(small.text))
    assert str(again.violation) == str(small.violation)


def test_decisions_shrink_to_what_is_needed():
    wanted = [0] * 40 + [7] + [0] * 9 + [3]

    def fails(tried):
        return 7 in tried and 3 in tried[tried.index(7) :]

    noisy = [one or 5 for one in wanted] * 2
    assert [one for one in shrunk(noisy, fails) if one] == [7, 3]


def test_decisions_as_text():
    made = [0, 0, 0, 17, 3, 3, 0]
    assert parsed(text_of(made)) == made
    assert parsed("") == []
    with pytest.raises(ValueError):
        parsed("0x2.a")


def test_decisions_end_quietly():
    choices = Choices(None, [5, 1])
    assert [choices.index(3), choices.index(3), choices.index(3)] == [2, 1, 0]
    assert choices.made == [2, 1, 0]


def test_a_violation_names_its_kind():
    assert str(Violation("a kind", "how")) == "a kind: how"
