"""The names at the package's root, which are imported on first use."""

from __future__ import annotations

import subprocess
import sys

import pytest

import forebay_state_api


def test_every_public_name_has_one_home() -> None:
    listed = [name for names in forebay_state_api._HOMES.values() for name in names]
    assert sorted(listed) == sorted(forebay_state_api.__all__)
    for name in forebay_state_api.__all__:
        assert getattr(forebay_state_api, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'ValuState'"):
        _ = forebay_state_api.ValuState


def test_a_star_import_has_the_public_names() -> None:
    code = "from forebay_state_api import *; print(ValueState, to_iterable)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=100)
