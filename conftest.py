"""Profiles of hypothesis: the same few examples in every run, or a search with fresh ones."""

from __future__ import annotations

import gc
from collections.abc import Generator
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "fixed",
    max_examples=40,
    derandomize=True,
    deadline=None,  # a slow machine is not a defect of the code
    suppress_health_check=[HealthCheck.too_slow],
)
# `tox -e slow` selects it with --hypothesis-profile; a failure prints the line that repeats it.
settings.register_profile(
    "search", settings.get_profile("fixed"), max_examples=200, derandomize=False, print_blob=True
)
settings.load_profile("fixed")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collect with the garbage collector off: ten thousand tests are made, and all of them stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


KIT: Final = "forebay_state_api.testing.conformance"


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: Any) -> list[Any] | None:
    """Leave out classes of which no test would run: those of the kit have hundreds of tests."""
    if not isinstance(obj, type) or not name.startswith("Test"):
        return None
    marks = {mark.name for mark in vars(obj).get("pytestmark", ())}
    if _is_of_kit(obj):
        marks.add("kit")
    expression = collector.config.option.markexpr
    return [] if any(f"not {mark}" in expression for mark in marks) else None


def _is_of_kit(cls: type) -> bool:
    """Whether all tests of a class are the kit's."""
    tests = [getattr(cls, name) for name in dir(cls) if name.startswith("test")]
    return bool(tests) and all(test.__module__.startswith(KIT) for test in tests)
