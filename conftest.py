"""Profiles of hypothesis, what need not be collected, and fixtures of several packages."""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import HealthCheck, settings

from forebay_state_api.plugins import plugins

if TYPE_CHECKING:
    from forebay_state_api.contract.backend import StateBackend
    from forebay_state_api.job.descriptors import StateDescriptor
    from forebay_testing import KeyedJob

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


collect_ignore = ["examples/backend-template"]
"""A project of its own; `tests/test_backend_template.py` runs its tests."""


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


def _module_of(file: str) -> Any:
    """Run a file of this repository, given from its root, as a module of the file's name."""
    path = Path(__file__).parent / file
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


JUNK: Final = [None, 5, -1, "x", b"y", [], {}, [[1]], {"a": 1}]


def _forged(plain: dict[Any, Any] | list[Any]) -> Iterator[dict[Any, Any] | list[Any]]:
    for place, value in plain.items() if isinstance(plain, dict) else enumerate(plain):
        rest = plain.copy()
        del rest[place]
        yield rest
        inner = _forged(value) if isinstance(value, dict | list) else ()
        for junk in [*JUNK, *inner]:
            changed = plain.copy()
            changed[place] = junk
            yield changed


@pytest.fixture
def forged() -> Callable[[Any], Iterator[Any]]:
    """Return a function that yields copies of plain data, each with one value removed or junk."""
    return _forged


@pytest.fixture(params=["s3", "gs", "az"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield a stand-in for each kind of object store; what fails there is tried again at once."""
    monkeypatch.setattr("forebay_state_api.storage.retry._FIRST_S", 0.001)
    stand_ins = _module_of("packages/state-api/tests/storage/stand_ins.py")
    with stand_ins.stand_in(request.param) as started:
        yield started


@pytest.fixture
def shelf_backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The backend of a third party, in this process as if it were installed."""
    module = _module_of("tests/third_party_backend/shelf_backend.py")
    registry = plugins()
    monkeypatch.setattr(registry, "_known", {**registry._by_key()})  # noqa: SLF001 - put back
    registry.register(module, "shelf")
    return module.ShelfBackend


@pytest.fixture(params=["heap", "lsm"])
def backend_class(request: pytest.FixtureRequest) -> type[StateBackend]:
    """Return each of the project's backends."""
    return plugins().backend(request.param)


@pytest.fixture
def make_job(tmp_path: Path, backend_class: type[StateBackend]) -> Callable[..., KeyedJob]:
    """Return a function that makes a job without Spark, whose state directory is ``tmp_path``."""
    from forebay_state_api.storage.opening import open_storage
    from forebay_testing import KeyedJob

    def make(*descriptors: StateDescriptor, **given: Any) -> KeyedJob:
        storage = open_storage(str(tmp_path))
        return KeyedJob(backend_class, storage, descriptors=descriptors, **given)

    return make


@pytest.fixture(scope="session")
def s3_options() -> Iterator[dict[str, Any]]:
    """Yield ``spark.forebay.storage.*`` for a server that has the bucket ``bucket``."""
    import boto3
    from moto.server import ThreadedMotoServer

    # Use no profile, proxy or credentials of this machine.
    kept = {name: os.environ.pop(name) for name in [*os.environ] if name.startswith("AWS_")}
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server.start()
    _, port = server.get_host_and_port()
    endpoint = f"http://127.0.0.1:{port}"
    secrets = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **secrets).create_bucket(
        Bucket="bucket"
    )
    yield {"endpoint": endpoint, "region": "us-east-1", **secrets, "retry-budget": 5.0}
    server.stop()
    os.environ.update(kept)
