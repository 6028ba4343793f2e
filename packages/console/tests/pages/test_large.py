"""Pages take bounded requests and work when a lot is stored: 10,000 versions and key groups."""

from __future__ import annotations

import sys
import threading
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Self

import pytest

from forebay_engine.versions.format import layout
from forebay_engine.versions.format.figures import Figures
from forebay_engine.versions.format.folder import OperatorStorage
from forebay_engine.versions.format.manifest import Manifest, put_manifest
from forebay_state_api.contract.file_names import data_name
from forebay_state_api.contract.files import StateFile
from forebay_state_api.contract.object_storage import ObjectInfo
from forebay_state_api.storage.forwarding import ForwardingStorage
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing.committing_job import coordinates

pytestmark = pytest.mark.long

FOLDER = "query/op"
PATH = f"/operators/{FOLDER}"
GROUPS = 10_000
STARTED = datetime(2026, 1, 1, tzinfo=UTC)
FIGURES = Figures(
    {"rows_in": 10**6, "rows_out": 10**6, "state_bytes": 10**9, "written_bytes": 10**5},
    {"input": 3_000, "function": 2_000, "commit_files": 300},
)
MOST_CALLS_PER_NAME = 50
"""Calls of Python functions; twice what a page takes. Quadratic work takes thousands."""
MOST_CALLS = 500_000
"""Twice what the heat map of 10,000 key groups takes; linear in what is shown."""
MOST_ROWS = 300
MOST_SHAPES = 2_500
MOST_BYTES = 400_000


class WithMore(ForwardingStorage):
    """Lists objects that are not there, as a large operator's folder would."""

    more: tuple[ObjectInfo, ...] = ()
    versions = parallelism = 0

    def list(self, prefix: str = ""):
        below = self.more if self._above else ()
        return [*super().list(prefix), *(o for o in below if o.name.startswith(prefix))]


def listed(version: int, parallelism: int):
    """The marker and the manifest of each subtask."""
    modified = STARTED + timedelta(seconds=version)
    for subtask in range(parallelism):
        by = coordinates(version, subtask, parallelism, GROUPS)
        names = layout.marker_name(by), layout.manifest_name(by, 1, 7, FIGURES)
        yield from (ObjectInfo(name=n, size=7, modified=modified) for n in names)


def put(root, version: int, subtask: int, parallelism: int) -> None:
    by = coordinates(version, subtask, parallelism, GROUPS)
    files = [
        StateFile(name=data_name(age, "toy"), size=10**6, range=by.range)
        for age in range(version - 8, version)
    ]
    manifest = Manifest(
        made=by,
        uid="op",
        backend="toy",
        parents=[],
        opened_version=version - 1,
        now_us=0,
        files=files,
        meta={},
        protected=(),
        descriptions={},
        operator_state={},
        metrics={"group_rows": [group % 97 for group in by.range], "bytes_total": 10**9},
        batch_ms=1_000,
    )
    put_manifest(OperatorStorage(root, FOLDER), manifest)


def large(versions: int, parallelism: int) -> WithMore:
    root = WithMore(MemoryStorage(f"memory://{versions}"))
    root.versions, root.parallelism = versions, parallelism
    for subtask in range(parallelism):
        put(root, versions + 1, subtask, parallelism)
    root.more = tuple(o for v in range(versions, 0, -1) for o in listed(v, parallelism))
    return root


@pytest.fixture(scope="module", params=[(10_000, 1), (100, 50)], ids=["versions", "subtasks"])
def root(request):
    return large(*request.param)


class Work:
    """Counts the calls of Python functions while a block runs, also on threads that it starts."""

    calls = 0

    def _count(self, frame, event, arg):
        self.calls += event == "call"

    def __enter__(self) -> Self:
        threading.setprofile(self._count)
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)
        threading.setprofile(None)


PAGES = [
    "/",
    "/metrics",
    PATH,
    f"{PATH}?last=1000",
    f"{PATH}/versions/{{newest}}",
    f"{PATH}/versions/2",
    f"{PATH}/groups",
    f"{PATH}/groups.csv",
    f"{PATH}/states",
    f"{PATH}/files",
    f"{PATH}/files.csv",
    f"{PATH}/kept",
    f"{PATH}/compaction",
    f"{PATH}/keys",
    f"{PATH}/difference",
]


@pytest.fixture(scope="module")
def console(root, new_console):
    """A console that lists each folder once."""
    return new_console(root, ttl_s=1e9)


def test_the_first_page_takes_a_list_request_per_1_000_names_and_work_per_name(root, new_console):
    fresh = new_console(root)
    with Work() as done:
        fresh.page("/")
    pages = ceil((len(root.list()) + len(root.more)) / 1_000)
    lists = {"list": 2 + pages}  # the root, the query, the operator
    assert fresh.counts.by_kind() == {"get": 0, "put": 0, "delete": 0, **lists}
    assert done.calls < MOST_CALLS_PER_NAME * len(root.more)


@pytest.mark.parametrize("path", PAGES)
def test_a_page_has_bounded_work_whatever_is_stored(root, console, path):
    console.page("/")
    before = console.counts.by_kind()
    with Work() as done:
        page = console.page(path.format(newest=root.versions + 1))
    asked = {kind: number - before[kind] for kind, number in console.counts.by_kind().items()}
    assert asked.pop("get") <= 2 * root.parallelism, "of each manifest, once"
    assert set(asked.values()) == {0}
    assert done.calls < MOST_CALLS
    assert page.count("<tr") < MOST_ROWS
    assert page.count("<rect") < MOST_SHAPES
    assert len(page) < MOST_BYTES
    if path in (PATH, f"{PATH}/groups", f"{PATH}/files"):
        assert f"{root.versions + 1:,}" in page
    if path == f"{PATH}/groups":
        assert 'id="map"' not in page, "too many numbers for a table"
    if path == f"{PATH}/groups.csv":
        assert len(page.splitlines()) == 1 + GROUPS
    if path == f"{PATH}/files.csv":
        assert len(page.splitlines()) == 1 + 8 * root.parallelism
