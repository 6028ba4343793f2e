"""Pants' requirements and plugin entry points agree with the packages' metadata."""

from __future__ import annotations

import re
import tomllib
from configparser import ConfigParser
from email import message_from_string
from pathlib import Path

ROOT = Path(__file__).parents[2]
REQUIREMENT = re.compile(r"([A-Za-z0-9_.-]+)(?:\[[^]]*\])?\s*([^;]*)(?:;.*)?")


def bounds(requirements: list[str]) -> set[tuple[str, str]]:
    """Return names and versions, without extras and markers and without our own packages.

    Pants runs Python 3.11: requirements for newer versions do not apply.
    """
    requirements = [line for line in requirements if "python_full_version >= " not in line]
    matches = [match for line in requirements if (match := REQUIREMENT.fullmatch(line))]
    assert len(matches) == len(requirements)
    return {(match[1], match[2].strip()) for match in matches if not match[1].startswith("forebay")}


def declared() -> list[str]:
    found: list[str] = []
    for file in ROOT.glob("packages/*/pyproject.toml"):
        text = tomllib.loads(file.read_text(encoding="utf-8"))
        found += text["project"]["dependencies"]
        for extra in text["project"].get("optional-dependencies", {}).values():
            found += extra
        found += text["dependency-groups"]["test"]
    return found


def test_pants_installs_what_the_packages_declare() -> None:
    file = ROOT / "3rdparty" / "requirements.txt"
    lines = file.read_text(encoding="utf-8").splitlines()
    told = [line for line in lines if line and not line.startswith("#")]
    assert bounds(told) == bounds(declared())


def test_pants_shows_tests_the_plugins_of_the_packages() -> None:
    told = {}
    for folder in (ROOT / "3rdparty" / "plugins").glob("*.egg-info"):
        points = ConfigParser()
        points.read(folder / "entry_points.txt", encoding="utf-8")
        name = message_from_string((folder / "PKG-INFO").read_text(encoding="utf-8"))["Name"]
        told[name] = {group: dict(points[group]) for group in points.sections()}
    for name, groups in told.items():
        file = ROOT / "packages" / name.removeprefix("forebay-") / "pyproject.toml"
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        assert groups == project["entry-points"], name
    assert len(told) > 3
