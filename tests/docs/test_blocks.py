"""Every block of every README and of the docs: Python runs, settings parse, commands exist.

The Python blocks of a page are one program: they run in order, as a script, in an empty directory.
A block whose first line is ``# not run: <reason>`` is compiled only. All pages run in one process;
those that need a session share one, and are marked ``spark``.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import metadata
from pathlib import Path
from typing import NamedTuple

import pytest

from forebay_state_api.plugins import plugins

ROOT = Path(__file__).parents[2]
JOB = ROOT / "tests" / "jobs" / "run_pages.py"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CHECKED = {"python", "toml", "sh", "yaml", "text", "mermaid", ""}
NOT_RUN = "# not run: "
INSTALL = re.compile(r"pip install '?(forebay-[a-z-]+)(?:\[([a-z,]+)\])?'?")


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    text: str


def pages() -> list[Path]:
    found = [*ROOT.glob("*.md"), *ROOT.glob("packages/*/README.md")]
    found += [p for top in ("docs", "examples", "benchmarks") for p in ROOT.glob(f"{top}/**/*.md")]
    return sorted(found)


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        yield Block(page, text.count("\n", 0, match.start()) + 1, match[1], match[2])


def all_of(language: str) -> list[Block]:
    return [block for page in pages() for block in blocks(page) if block.language == language]


def place(block: Block) -> str:
    return f"{block.page.relative_to(ROOT)}:{block.line}"


def program(page: Path) -> str:
    """Return the page's Python with its line numbers unchanged, so that traces name them."""
    lines: list[str] = []
    for block in blocks(page):
        if block.language == "python" and not block.text.startswith(NOT_RUN):
            lines += [""] * (block.line - len(lines))
            lines += block.text.splitlines()
    return "\n".join(lines)


def programs() -> Iterator[object]:
    for page in pages():
        if text := program(page):
            marks = [pytest.mark.spark] if "SparkSession" in text else []
            yield pytest.param(page, marks=marks, id=str(page.relative_to(ROOT)))


@pytest.fixture(scope="module")
def run_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path, Path], None]]:
    log = tmp_path_factory.mktemp("pages") / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, str(JOB)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=out,
            text=True,
        )
    assert process.stdin
    assert process.stdout

    def run(file: Path, folder: Path) -> None:
        process.stdin.write(f"{json.dumps([str(file), str(folder)])}\n")
        process.stdin.flush()
        said = json.loads(process.stdout.readline() or '"the process has ended"')
        assert said is None, f"{said}\n{log.read_text(errors='replace')[-4000:]}"

    yield run
    with process:  # closes its input, which ends it
        pass


@pytest.mark.parametrize("page", list(programs()))
def test_the_python_of_a_page_runs(
    page: Path, run_page: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    file = tmp_path / f"{page.stem}.py"
    file.write_text(program(page), encoding="utf-8")
    folder = tmp_path / "empty"
    folder.mkdir()
    run_page(file, folder)


@pytest.mark.parametrize("block", all_of("python"), ids=place)
def test_python_compiles(block: Block) -> None:
    compile(block.text, place(block), "exec")


@pytest.mark.parametrize("block", all_of("toml"), ids=place)
def test_toml_parses(block: Block) -> None:
    assert tomllib.loads(block.text)


@pytest.mark.parametrize("block", all_of("sh"), ids=place)
def test_commands_exist(block: Block) -> None:
    for line in block.text.splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["forebay"] and not words[1].startswith("-"):
            assert words[1] in plugins().commands(), line
        elif words and words[0].startswith("./"):
            assert (ROOT / words[0]).exists(), line
        if install := INSTALL.search(line):
            check_extras(install[1], install[2])


def check_extras(distribution: str, extras: str | None) -> None:
    known = metadata(distribution).get_all("Provides-Extra", [])
    assert set((extras or "").split(",")) <= {*known, ""}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_says_what_it_is(page: Path) -> None:
    assert {block.language for block in blocks(page)} <= CHECKED
