"""The page on the architecture lists every room, and the files and names on it exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
PACKAGES = sorted(path.name for path in (ROOT / "packages").iterdir() if path.is_dir())
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
SPAN = re.compile(r"`([^`\n]+)`")
DEFINED = re.compile(r"^ *class (\w+)", re.MULTILINE)
CLASS = re.compile(r"([A-Z][a-z]\w+)(?:\.(\w+))?")


def sources(package: str) -> Path:
    return ROOT / "packages" / package / "src" / f"forebay_{package.replace('-', '_')}"


def sections() -> Iterator[tuple[str, str]]:
    """Each heading with the text below it."""
    _, *parts = HEADING.split(PAGE)
    yield from zip(parts[::2], parts[1::2], strict=True)


def rows() -> Iterator[tuple[str, str]]:
    """Package and text of each row of the walks."""
    for line in PAGE.splitlines():
        package, _, rest = line.removeprefix("| ").partition(" | ")
        if package in PACKAGES:
            yield package, rest


def files(text: str) -> list[str]:
    return [span for span in SPAN.findall(text) if re.fullmatch(r"[\w/]+\.py", span)]


def owner(package: str, file: str, text: str) -> str:
    """The package of a file in a row: a file of another one is followed by its name."""
    return next((one for one in PACKAGES if f"`{file}` of {one}" in text), package)


def definitions(names: set[str]) -> dict[str, set[str]]:
    """The classes of all packages with one of ``names``, each with its own methods."""
    found: dict[str, set[str]] = {}
    for package in PACKAGES:
        for file in sources(package).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            if names.isdisjoint(DEFINED.findall(text)):
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef):
                    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
                    methods = {one.name for one in node.body if isinstance(one, functions)}
                    found.setdefault(node.name, set()).update(methods)
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_every_room_is_listed_under_its_package(package):
    rooms = {
        f"{file.parent.relative_to(sources(package))}/"
        for file in sources(package).rglob("*/__init__.py")
    }
    section = "".join(text for heading, text in sections() if package in heading.split())
    listed = set(re.findall(r"^\| `([\w/]+/)` \|", section, re.MULTILINE))
    if package != "backend-heap":  # which has none, in one section with backend-lsm
        assert listed == rooms
    else:
        assert not rooms


def test_the_walks_name_files_of_their_package():
    walked = list(rows())
    assert len(walked) > 40
    missing = [
        (package, file)
        for package, rest in walked
        for file in files(rest)
        if not (sources(owner(package, file, rest)) / file).is_file()
    ]
    assert missing == []


def test_every_other_file_on_the_page_exists_in_some_package():
    roots = [ROOT, *map(sources, PACKAGES)]
    missing = [file for file in files(PAGE) if not any((root / file).is_file() for root in roots)]
    assert missing == []


def test_every_folder_of_the_repository_on_the_page_exists():
    named = re.findall(r"`((?:packages|tests|docs)/[^`]+)`", PAGE)
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.long
def test_every_class_and_method_on_the_page_exists():
    named = [match for span in SPAN.findall(PAGE) if (match := CLASS.fullmatch(span))]
    assert len(named) > 30
    known = definitions({match[1] for match in named})
    missing = [
        match[0]
        for match in named
        if match[1] not in known or (match[2] and match[2] not in known[match[1]])
    ]
    assert missing == []
