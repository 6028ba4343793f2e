"""The chain of versions with which the tests of jobs and of their results begin."""

from __future__ import annotations

import pytest

from .chain import RULES, Chain


@pytest.fixture
def chain() -> Chain:
    return Chain(RULES)
