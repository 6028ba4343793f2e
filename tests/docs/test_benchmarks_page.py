"""The page of benchmarks names every command, and has a section for the figures of each."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
EXPLANATION = FOLDER.parent / "docs" / "explanation" / "remote-compaction.md"
MEASURES = re.compile(r'^@benchmark\((?:"([a-z-]+)"|SECTION)\)', re.MULTILINE)
SECTION = re.compile(r'^SECTION: Final = "([a-z-]+)"', re.MULTILINE)


def sections() -> dict[str, str]:
    """Return the name of each module that prints a result → its section."""
    found = {}
    for file in FOLDER.glob("*.py"):
        text = file.read_text(encoding="utf-8")
        if match := MEASURES.search(text):
            found[file.stem] = match[1] or SECTION.findall(text)[0]
    return found


@pytest.mark.parametrize(("module", "section"), sections().items())
def test_a_command_can_write_what_it_found(module, section):
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert f"| `python -m benchmarks.{module}` |" in page
    command = f"\n    python -m benchmarks.{module} "
    assert command in page
    begin, end = f"<!-- {section}: begin -->\n", f"<!-- {section}: end -->\n"
    assert page.index(command) < page.index(begin) < page.index(end)


def test_the_page_on_remote_compaction_has_a_place_too():
    section = sections()["compaction_offload"]
    page = EXPLANATION.read_text(encoding="utf-8")
    assert page.index(f"<!-- {section}: begin -->\n") < page.index(f"<!-- {section}: end -->\n")


def test_all_that_measure_are_looked_at():
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert sorted(sections().values()) == sorted(re.findall(r"<!-- ([a-z-]+): begin -->", page))


@pytest.mark.long
def test_every_command_finds_what_it_imports_and_replaces():
    """Except the peers that run on Flink, which is not installed here."""
    modules = [file.stem for file in FOLDER.glob("[!_]*.py") if "flink" not in file.stem]
    imports = "".join(f"import benchmarks.{name}\n" for name in sorted(modules))
    command = [sys.executable, "-c", imports]
    done = subprocess.run(command, cwd=FOLDER.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
