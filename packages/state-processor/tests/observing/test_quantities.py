"""Numbers as commands and pages show them to people."""

from __future__ import annotations

import pytest

from forebay_state_processor.observing.quantities import (
    count_text,
    growth_text,
    milliseconds_text,
    seconds_text,
    share_text,
    short_text,
    size_text,
)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (None, "-"),
        (0, "0"),
        (0.25, "0.25"),
        (7, "7"),
        (999, "999"),
        (999.6, "1k"),
        (12_345, "12.3k"),
        (9_999_999, "10M"),
        (-2_500, "-2.5k"),
    ],
)
def test_short(number, text):
    assert short_text(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (None, "-"),
        (-3, "0 s"),
        (0, "0 s"),
        (0.0123, "12 ms"),
        (1.5, "1.5 s"),
        (75, "1 min 15 s"),
        (3_600, "1 h"),
        (90_000, "1 d 1 h"),
    ],
)
def test_seconds(number, text):
    assert seconds_text(number) == text
    assert milliseconds_text(None if number is None else 1_000 * number) == text


def test_sizes_have_their_unit():
    sizes = [size_text(n) for n in (None, 0, 12, 1_500, 2e9)]
    assert sizes == ["-", "0 B", "12 B", "1.5 kB", "2 GB"]
    assert [growth_text(n) for n in (None, 1_000, -1_000)] == ["-", "+3.6 MB/h", "-3.6 MB/h"]


def test_counts_are_exact_and_shares_are_not():
    assert [count_text(n) for n in (None, 0, 12_345)] == ["-", "0", "12,345"]
    assert [share_text(n) for n in (None, 0, 0.345)] == ["-", "0 %", "34 %"]
    assert [share_text(1, whole) for whole in (3, 0)] == ["33 %", "-"]
