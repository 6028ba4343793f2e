"""Names that packages import on first use."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest

import forebay_state_api
from forebay_engine import versions
from forebay_state_processor import observing, reading


@pytest.mark.parametrize("package", [forebay_state_api, observing, reading, versions])
def test_every_public_name_has_one_home(package: ModuleType) -> None:
    listed = [name for names in package._HOMES.values() for name in names]
    assert sorted(listed) == sorted(package.__all__)
    for name in package.__all__:
        assert getattr(package, name) is not None


@pytest.mark.parametrize("package", [forebay_state_api, observing, reading, versions])
def test_no_public_name_is_hidden_by_a_module(package: ModuleType) -> None:
    """Whoever imports a module of a package sets the module as the package's attribute."""
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert not modules & {*package.__all__}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'ValuState'"):
        _ = forebay_state_api.ValuState


@pytest.mark.long
def test_a_star_import_has_the_public_names() -> None:
    code = "from forebay_state_api import *; print(ValueState, to_iterable)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=100)
