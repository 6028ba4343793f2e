"""The page on storage has the requests that are made, and their prices."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from forebay_state_processor.observing.request_costs import (
    GB_MONTH_USD,
    GET_USD,
    MONTH_S,
    PUT_OR_LIST_USD,
)

SCRIPT = Path(__file__).parents[2] / "scripts" / "request_tables.py"
SPEC = importlib.util.spec_from_file_location("request_tables", SCRIPT)
assert SPEC is not None
assert SPEC.loader is not None
request_tables = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(request_tables)

PAGE = request_tables.PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tables():
    return request_tables.tables()


@pytest.mark.long
def test_tables_are_what_was_counted(tables):
    assert request_tables.filled(PAGE, tables) == PAGE, "run `python scripts/request_tables.py`"
    assert all(f"<!-- table of {name} -->" in PAGE for name in tables)


def test_the_prices_of_the_page_are_those_of_the_code():
    stores = re.findall(r"^\| ([^|]+) \| \$(0\.\d+).*?\| \$(0\.\d+)", PAGE, re.MULTILINE)
    prices = {name: (float(put), float(get)) for name, put, get in stores}
    s3 = PUT_OR_LIST_USD * 1_000, GET_USD * 1_000
    named = ("S3 Standard, US East", "Google", "Azure", "Cloudflare R2")
    for name, factor in zip(named, (1.0, *request_tables.PROVIDERS), strict=True):
        (found,) = (both for store, both in prices.items() if store.startswith(name))
        assert found == pytest.approx([price * factor for price in s3])
    assert PAGE.count(f"${GB_MONTH_USD}") == 2
    assert PAGE.count(f"{MONTH_S:,} /") == 2


@pytest.mark.parametrize(("numbers", "text"), [((1, 1, 1), "1"), ((3, 6, 18), "2 + p")])
def test_numbers_in_subtasks(numbers, text):
    assert request_tables.in_subtasks(numbers) == text


def test_numbers_that_are_no_line_are_refused():
    with pytest.raises(ValueError, match="no line"):
        request_tables.in_subtasks((1, 2, 4))
