"""Plots: their scales, their shares, and that nothing in them is markup of others."""

from __future__ import annotations

import re

import pytest

from forebay_console.charts import Cell, Scale, Strip, bars, grid, stacked, strips
from forebay_console.charts.grid import shade


@pytest.mark.parametrize(
    ("largest", "top"),
    [(0, 1), (0.4, 0.5), (1, 1), (1.01, 2), (3, 5), (99, 100), (100, 100), (2_100, 2_500)],
)
def test_a_scale_ends_at_a_round_number(largest, top):
    assert Scale.over(largest).top == pytest.approx(top)


def test_parts_of_a_bar_are_stacked_without_gaps():
    drawn = stacked([{"function": 3.0, "commit": 1.0}], ["function", "commit"], ["tip"], [None])
    found = re.findall(r'class="c-(\w+)".*? y="([\d.]+)".*? height="([\d.]+)"', str(drawn.svg))
    assert drawn.scale.top == 5
    assert found == [("function", "40", "60"), ("commit", "20", "20")]


def test_bars_have_the_height_of_their_value():
    drawn = bars([1.0, 0.0, 5.0], "rows_in", ["a", "b", "c"])
    assert re.findall(r'class="c-rows_in".*? height="([\d.]+)"', str(drawn.svg)) == ["20", "100"]


def test_shades_are_equal_steps_and_nothing_is_its_own():
    assert [shade(value, 8.0) for value in (0, 0.1, 1, 4, 7.9, 8)] == [0, 1, 2, 5, 8, 8]
    assert shade(0, 0) == 0


def test_a_short_row_is_as_wide_as_a_long_one():
    svg = str(grid([[Cell(1, "a")], [Cell(1, "b"), Cell(2, "c")]], 2))
    assert [float(w) for w in re.findall(r' width="([\d.]+)"', svg)] == [1.76, 0.88, 0.88]


def test_the_newest_file_is_on_top():
    found = [Strip(0, 9, 0, 5.0, "old"), Strip(0, 4, 1, 1.0, "new")]
    svg = str(strips(found, 10))
    tops = dict(re.findall(r'y="([\d.]+)"[^>]*><title>(\w+)', svg))
    assert {name: float(y) for y, name in tops.items()} == {"old": 1.08, "new": 0.08}


def test_narrow_ranges_are_drawn_next_to_each_other():
    found = [Strip(at, at + 9, 0, 1.0, "ten key groups") for at in range(0, 10_000, 10)]
    widths = re.findall(r' width="([^"]+)"', str(strips(found, 10_000)))
    assert len(widths) == 1_000
    assert all(0 < float(one) < 10 for one in widths)


def test_texts_are_escaped():
    evil = '"><script>alert(1)</script>'
    for svg in (
        stacked([{evil: 1.0}], [evil], [evil], [evil]).svg,
        grid([[Cell(1, evil)]], 1),
        strips([Strip(0, 1, 0, 1.0, evil)], 2),
    ):
        assert "<script" not in svg
        assert "&lt;script&gt;" in svg
