"""The repository's URL in the metadata of every package."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

from ..loading import load

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "project_urls.py"
project_urls = load(SCRIPT)


@pytest.fixture
def packages(tmp_path: Path) -> list[Path]:
    copies = []
    for file in sorted(ROOT.glob("packages/*/pyproject.toml")):
        copy = tmp_path / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True)
        shutil.copy(file, copy)
        copies.append(copy)
    assert len(copies) == 10
    return copies


def test_every_package_gets_the_urls_and_nothing_else_changes(
    packages: list[Path], tmp_path: Path
) -> None:
    before = [tomllib.loads(file.read_text()) for file in packages]
    assert project_urls.main(["https://git.example/forebay/"], tmp_path) == 0
    for file, old in zip(packages, before, strict=True):
        new = tomllib.loads(file.read_text())
        found = new["project"].pop("urls")
        old["project"].pop("urls", None)
        assert new == old
        assert found["Homepage"] == "https://git.example/forebay"
        assert found["Changelog"].endswith(f"/packages/{file.parent.name}/CHANGELOG.md")


def test_they_are_replaced(packages: list[Path], tmp_path: Path) -> None:
    project_urls.main(["https://old.example/forebay"], tmp_path)
    once = [file.read_text().count("[project.urls]") for file in packages]
    project_urls.main(["https://new.example/forebay"], tmp_path)
    texts = [file.read_text() for file in packages]
    assert once == [text.count("[project.urls]") for text in texts] == [1] * 10
    assert not any("old.example" in text for text in texts)


def test_what_is_no_url(packages: list[Path], tmp_path: Path) -> None:
    before = [file.read_text() for file in packages]
    assert project_urls.main(["git@git.example:forebay"], tmp_path) == 2
    assert [file.read_text() for file in packages] == before
