"""`import_on_first_use`, with its source and without."""

from __future__ import annotations

import compileall
import sys
from collections.abc import Iterator
from importlib import import_module, invalidate_caches
from pathlib import Path

import pytest

PACKAGE = """
from typing import TYPE_CHECKING

from forebay_state_api.lazy_names import import_on_first_use

if TYPE_CHECKING or not import_on_first_use(__name__):
    from lazy_package.first import One as One, two as two
    from lazy_package.second import THREE as THREE
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "lazy_package"
    folder.mkdir()
    (folder / "__init__.py").write_text(PACKAGE)
    (folder / "first.py").write_text("class One: ...\ndef two(): ...\n")
    (folder / "second.py").write_text("THREE = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.startswith("lazy_package")]:
        del sys.modules[name]


def test_a_name_is_imported_when_it_is_used(folder: Path) -> None:
    package = import_module(folder.name)
    assert "lazy_package.second" not in sys.modules
    assert package.THREE == 3
    assert vars(package)["THREE"] == 3
    assert "lazy_package.first" not in sys.modules
    assert package.__all__ == dir(package) == ["One", "THREE", "two"]


def test_an_unknown_name_is_an_attribute_error(folder: Path) -> None:
    package = import_module(folder.name)
    with pytest.raises(AttributeError, match="'lazy_package' has no attribute 'four'") as caught:
        _ = package.four
    assert (caught.value.name, caught.value.obj) == ("four", package)
    assert not hasattr(package, "TYPE_CHECKED")


def test_without_its_source_a_package_imports_everything(folder: Path) -> None:
    assert compileall.compile_dir(folder, legacy=True, quiet=1)
    for file in folder.glob("*.py"):
        file.unlink()
    invalidate_caches()
    package = import_module(folder.name)
    assert {"lazy_package.first", "lazy_package.second"} <= sys.modules.keys()
    assert package.THREE == 3
    assert package.One.__name__ == "One"
