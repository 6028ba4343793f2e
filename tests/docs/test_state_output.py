"""The terminal output in docs/how-to/look-into-state.md is what the commands print."""

from __future__ import annotations

import html
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from forebay_cli.main import main

pytestmark = pytest.mark.long

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "look-into-state.md"
TEXT = PAGE.read_text(encoding="utf-8")
SHOWN = re.compile(
    r"^```sh\n(forebay [^\n]*)\n```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
JOB = re.compile(r"^```python\n((?:(?!```).)*KeyedJob.*?)^```$", re.MULTILINE | re.DOTALL)
PICTURES = re.compile(r"^!\[[^]]*\]\(([\w-]+\.svg)\)$", re.MULTILINE)
LINE = re.compile(r'<text [^>]*y="([\d.]+)"[^>]*clip-path[^>]*>(.*?)</text>')
VARYING = ((r"[0-9a-f]{16}", "1f0c2a9e6b3d4875"), (r"\b\d+(\.\d+)? k?B\b", "1.5 kB"))


def comparable(text: str) -> list[str]:
    """Replace what differs from run to run, and the widths of columns."""
    for pattern, same in VARYING:
        text = re.sub(pattern, same, text)
    text = re.sub(r"\b\d+ (s|min)\b", "1 s", text)
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.fixture
def _state(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(JOB.search(TEXT)[1], str(PAGE), "exec"), {})


@pytest.mark.usefixtures("_state")
def test_the_page_shows_what_the_commands_print():
    shown = SHOWN.findall(TEXT)
    assert len(shown) == 4
    for command, output in shown:
        result = CliRunner().invoke(main, shlex.split(command)[1:])
        assert result.exit_code == 0, result.output
        assert comparable(result.stdout) == comparable(output), command


def lines_of(picture: str) -> list[str]:
    """The lines of a terminal in a picture."""
    svg = (PAGE.parent / picture).read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for place, text in LINE.findall(svg):
        found[place] = f"{found.get(place, '')} {html.unescape(text)}"
    return [" ".join(line.split()) for line in found.values()]


@pytest.mark.usefixtures("_state")
def test_the_pictures_show_what_the_commands_print():
    """After a change, make them again: ``python scripts/terminal_pictures.py state-on-call``…"""
    pictures = PICTURES.findall(TEXT)
    assert len(pictures) == 2
    for picture in pictures:
        shown = [line for line in lines_of(picture) if line]
        commands = [line.removeprefix("$ ") for line in shown if line.startswith("$ ")]
        assert len(commands) > 2
        printed = []
        for command in commands:
            result = CliRunner().invoke(main, shlex.split(command)[1:])
            assert result.exit_code == 0, result.output
            printed += [f"$ {command}", *result.output.splitlines()]
        assert comparable("\n".join(shown)) == comparable("\n".join(filter(None, printed)))


def test_a_picture_has_the_commands_of_the_page():
    (first, *_) = PICTURES.findall(TEXT)
    commands = [line for line in lines_of(first) if line.startswith("$ ")]
    assert commands == [f"$ {command}" for command, _ in SHOWN.findall(TEXT)]
