"""The messages in the headings of the page on recovery are in the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from forebay_state_api import errors

ROOT = Path(__file__).parents[2]
HEADINGS = [
    line.removeprefix("## ")
    for line in (ROOT / "docs" / "how-to" / "recover.md").read_text().splitlines()
    if line.startswith('## "')
]


def texts_of(path):
    """Return a module's strings without docstrings, with … for the values that are filled in."""
    tree = ast.parse(path.read_text())
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(map(_shown, node.values))
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
        ):
            yield node.value


def quotes(heading):
    """Yield the name of the error, or nothing, and the text of each quotation in a heading."""
    for quoted in re.findall(r'"([^"]+)"', heading):
        kind, colon, text = quoted.rpartition("Error: ")
        yield f"{kind}Error" if colon else "", text


def _shown(part):
    return part.value if isinstance(part, ast.Constant) else "…"


@pytest.fixture(scope="module")
def messages():
    """The strings of all modules in which each word of some quoted text is found."""
    quoted = [re.findall(r"\w+", text) for line in HEADINGS for _, text in quotes(line)]
    return [
        text
        for package in ("state-api", "engine", "state-processor", "backend-heap", "backend-lsm")
        for path in sorted((ROOT / "packages" / package / "src").rglob("*.py"))
        if any(all(word in path.read_text() for word in words) for words in quoted)
        for text in texts_of(path)
    ]


def test_there_are_headings_with_messages():
    assert len(HEADINGS) >= 4


@pytest.mark.long
@pytest.mark.parametrize("heading", HEADINGS)
def test_a_heading_has_the_words_of_the_message(heading, messages):
    for name, text in quotes(heading):
        assert not name or hasattr(errors, name)
        words = re.compile(".*".join(map(re.escape, filter(None, map(str.strip, text.split("…"))))))
        assert any(map(words.search, messages)), text
