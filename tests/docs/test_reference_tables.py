"""The tables of the reference have exactly the settings and metrics of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..loading import load

SCRIPT = Path(__file__).parents[2] / "scripts" / "reference_tables.py"
reference_tables = load(SCRIPT)

PAGES = {
    path.name: path.read_text(encoding="utf-8")
    for path in sorted(SCRIPT.parents[1].glob("docs/reference/*.md"))
}


@pytest.mark.parametrize("page", PAGES)
def test_tables_are_those_of_the_code(page):
    message = "run `python scripts/reference_tables.py`"
    assert PAGES[page] == reference_tables.filled(PAGES[page]), message


def test_no_table_is_without_a_page():
    missing = [
        name
        for name in reference_tables.tables()
        if f"<!-- table of {name} -->" not in "".join(PAGES.values())
    ]
    assert not missing
