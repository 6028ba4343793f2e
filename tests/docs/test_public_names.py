"""Pages, examples and plugins of third parties import public names, and a page lists them all."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from ..loading import load

ROOT = Path(__file__).parents[2]
public_names = load(ROOT / "scripts" / "public_names.py")

LISTS = public_names.lists()
PUBLIC = [module for lists in LISTS.values() for module in lists.public]
TEXTS = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/[!d]*/*.md"),  # decisions are for contributors
    *ROOT.glob("packages/*/README.md"),
    *ROOT.glob("examples/*.*"),
    *ROOT.glob("tests/third_party_*/*.py"),
    *ROOT.glob("typing_tests/*.py"),
]
IMPORT = re.compile(r"^ *(?:from|import) (forebay_[\w.]+)(?: import (\([^)]+\)|.+))?", re.MULTILINE)
IMPORTED = re.compile(r"(\w+)(?: as \w+)?\s*(?:,|\)|$)")
NAME = re.compile(r"`(forebay_\w+(?:\.\w+)*)\.([A-Z]\w+)`")
"""A class in prose, with its module."""


def imported(text):
    """Yield module and name of each import; the name is empty for the module itself."""
    for module, names in IMPORT.findall(text):
        for name in IMPORTED.findall(re.sub("#.*", "", names)) or [""]:
            yield module, name


def not_public(text):
    """The imports in a text, and the classes in its prose, of our packages and not public."""
    return [
        f"{module}: {name}"
        for module, name in [*imported(text), *NAME.findall(text)]
        if module.partition(".")[0] in LISTS
        and (module not in PUBLIC or (name and name not in public_names.names_of(module)))
    ]


def test_the_page_is_that_of_the_code():
    page = public_names.PAGE.read_text(encoding="utf-8")
    assert page == public_names.page(), "run `python scripts/public_names.py`"


@pytest.mark.long
@pytest.mark.parametrize("module", PUBLIC)
def test_a_public_module_has_its_names(module):
    loaded = import_module(module)
    assert sorted(loaded.__all__) == public_names.names_of(module)
    assert all(hasattr(loaded, name) for name in loaded.__all__)
    assert not any(name.startswith("_") for name in loaded.__all__)


@pytest.mark.parametrize("file", TEXTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_only_public_names_are_imported(file):
    assert not_public(file.read_text(encoding="utf-8")) == []


def test_every_package_has_its_lists():
    sources = [path.name for path in ROOT.glob("packages/*/src/forebay_*")]
    assert sorted(sources) == sorted(LISTS)


def test_what_is_not_public_is_found():
    assert not_public("from forebay_state_api import ValueState, Timers  # both") == []
    assert not_public("from forebay_state_api import ValueState, attrs") == [
        "forebay_state_api: attrs"
    ]
    assert not_public("    from forebay_engine.calls.caller import (\n    Caller,\n)\n") == [
        "forebay_engine.calls.caller: Caller"
    ]
    assert not_public("import forebay_state_api.keys") == ["forebay_state_api.keys: "]
    assert not_public("see `forebay_engine.execution.subtask.Subtask`") == [
        "forebay_engine.execution.subtask: Subtask"
    ]
