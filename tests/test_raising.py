"""Messages of errors are written where they are raised: ``raise FaultError("the message")``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
RAISES_A_NAME = re.compile(r"\braise\s+\w+\(\s*\w+\s*[,)]")


def messages_apart(tree: ast.AST) -> Iterator[ast.Assign]:
    """Assignments of a text that the next statement does nothing with but raise it."""
    for node in ast.walk(tree):
        for block in ("body", "orelse", "finalbody"):
            body = getattr(node, block, None)
            for pair in pairwise(body) if isinstance(body, list) else ():
                match pair:
                    case (
                        ast.Assign(
                            targets=[ast.Name(id=name)], value=ast.JoinedStr() | ast.Constant()
                        ) as assignment,
                        ast.Raise(exc=ast.Call(func=ast.Name(), args=[ast.Name(id=given), *_])),
                    ) if name == given:
                        yield assignment


def messages_apart_in(file: Path) -> Iterator[ast.Assign]:
    text = file.read_text(encoding="utf-8")
    if RAISES_A_NAME.search(text):  # only then is it worth parsing
        yield from messages_apart(ast.parse(text))


def test_messages_are_written_where_they_are_raised():
    found = [
        f"{file.relative_to(ROOT)}:{one.lineno}"
        for file in sorted(ROOT.glob("packages/*/src/**/*.py"))
        for one in messages_apart_in(file)
    ]
    assert not found, "\n".join(found)


def test_a_message_of_its_own_is_found(tmp_path):
    file = tmp_path / "module.py"
    file.write_text("if bad:\n    message = 'bad'\n    raise ValueError(message) from None\n")
    assert [one.lineno for one in messages_apart_in(file)] == [2]
    file.write_text("raise ValueError('bad')")
    assert not [*messages_apart_in(file)]
