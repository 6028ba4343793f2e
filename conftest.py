"""Profiles of hypothesis, what need not be collected, and the backend of a third party."""

from __future__ import annotations

import gc
import importlib.util
import re
from collections.abc import Generator, Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

from forebay_state_api.plugins import plugins

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
# `./run test --fast` selects it.
settings.register_profile("few", settings.get_profile("fixed"), max_examples=8)
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


KIT: Final = "forebay_testing.backends"
MARKS_OF_FILE: Final = re.compile(r"^pytestmark = (\[[^\]]*\]|.*)", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files of which no test would run, and folders of such files: imports take long."""
    is_folder = collection_path.is_dir()
    files = collection_path.rglob("test_*.py") if is_folder else iter([collection_path])
    return True if all(_is_left_out(marks_of(file), config) for file in files) else None


@cache
def marks_of(file: Path) -> frozenset[str]:
    """Return the marks that a test file gives to all its tests."""
    if not file.match("test_*.py"):
        return frozenset()
    found = MARKS_OF_FILE.search(file.read_text(encoding="utf-8"))
    return frozenset(re.findall(r"pytest\.mark\.(\w+)", found[1]) if found else ())


def _is_left_out(marks: Iterable[str], config: pytest.Config) -> bool:
    return any(f"not {mark}" in config.option.markexpr for mark in marks)


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: Any) -> list[Any] | None:
    """Leave out classes of which no test would run: those of the kit have hundreds of tests."""
    if not isinstance(obj, type) or not name.startswith("Test"):
        return None
    marks = {mark.name for mark in vars(obj).get("pytestmark", ())}
    if _is_of_kit(obj):
        marks.add("kit")
    return [] if _is_left_out(marks, collector.config) else None


def _is_of_kit(cls: type) -> bool:
    """Whether all tests of a class are the kit's."""
    tests = [getattr(cls, name) for name in dir(cls) if name.startswith("test")]
    return bool(tests) and all(test.__module__.startswith(KIT) for test in tests)


@pytest.fixture
def shelf_backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The backend of a third party, in this process as if it were installed."""
    file = Path(__file__).with_name("tests") / "third_party_backend" / "shelf_backend.py"
    spec = importlib.util.spec_from_file_location("shelf_backend", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    registry = plugins()
    monkeypatch.setattr(registry, "_known", {**registry._by_key()})  # noqa: SLF001 - put back
    registry.register(module, "shelf")
    return module.ShelfBackend
