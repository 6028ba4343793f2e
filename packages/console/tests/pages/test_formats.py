"""Numbers as pages write them."""

from __future__ import annotations

import pytest

from forebay_console.pages import formats


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (None, "\u2013"),
        (0, "0"),
        (7, "7"),
        (999, "999"),
        (999.6, "1 k"),
        (12_345, "12.3 k"),
        (9_999_999, "10 M"),
        (-2_500, "-2.5 k"),
    ],
)
def test_short(number, text):
    assert formats.short(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (None, "\u2013"),
        (0, "0"),
        (0.0123, "12 ms"),
        (1.5, "1.5 s"),
        (75, "1 min 15 s"),
        (3_600, "1 h"),
        (90_000, "1 d 1 h"),
    ],
)
def test_seconds(number, text):
    assert formats.seconds(number) == text


def test_sizes_have_their_unit():
    assert [formats.size(n) for n in (0, 12, 1_500, 2e9)] == ["0 B", "12 B", "1.5 kB", "2 GB"]
