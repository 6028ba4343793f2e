"""Packages whose public names are imported on first use."""

from __future__ import annotations

import ast
import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = [
    ".".join(file.parent.parts[file.parts.index("src") + 1 :])
    for file in sorted(ROOT.glob("packages/*/src/**/__init__.py"))
    if "not import_on_first_use(__name__)" in file.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there(package):
    module = import_module(package)
    assert module.__all__
    assert dir(module) == module.__all__ == sorted(set(module.__all__))
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.mark.parametrize("package", PACKAGES)
def test_names_are_imported_as_themselves_in_order(package):
    """So that type checkers take them for public, and readers find them."""
    tree = ast.parse(Path(import_module(package).__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    homes = [line.module for line in block.body]
    assert homes == sorted(set(homes))
    for line in block.body:
        names = [alias.name for alias in line.names]
        assert names == sorted(names) == [alias.asname for alias in line.names]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_public_name_is_hidden_by_a_module(package):
    """Importing a module of a package sets the module as the package's attribute."""
    module = import_module(package)
    modules = {found.name for found in pkgutil.iter_modules(module.__path__)}
    assert not modules & {*module.__all__}


@pytest.mark.long
def test_a_star_import_has_the_public_names():
    code = "from forebay_state_api import *; print(ValueState, to_iterable)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=100)


@pytest.mark.long
def test_a_package_imports_what_is_used():
    code = "import sys, {}; print(*[name for name in sys.modules if 'forebay' in name])"
    for package in ("forebay_spark_runtime", "forebay_testing"):
        loaded = subprocess.check_output([sys.executable, "-c", code.format(package)], text=True)
        assert set(loaded.split()) == {package, "forebay_state_api", "forebay_state_api.lazy_names"}
