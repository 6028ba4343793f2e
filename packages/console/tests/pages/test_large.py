"""Pages stay fast when a lot is stored: 10,000 versions, 10,000 key groups."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from forebay_state_api.contract.files import StateFile
from forebay_state_api.contract.object_storage import ObjectInfo
from forebay_state_api.keys import key_group_range_of
from forebay_state_api.storage.forwarding import ForwardingStorage
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_state_api.versions import layout
from forebay_state_api.versions.figures import Figures
from forebay_state_api.versions.folder import OperatorStorage
from forebay_state_api.versions.layout import Coordinates
from forebay_state_api.versions.manifest import Manifest, put_manifest

pytestmark = pytest.mark.long

FOLDER = "query/op"
PATH = f"/operators/{FOLDER}"
GROUPS = 10_000
STARTED = datetime(2026, 1, 1, tzinfo=UTC)
FIGURES = Figures(
    {"rows_in": 10**6, "rows_out": 10**6, "state_bytes": 10**9, "written_bytes": 10**5},
    {"input": 3_000, "function": 2_000, "commit_files": 300},
)
MOST_CPU_S = 10.0
"""Ten times what a page may take: a busy machine stays below it, quadratic work does not."""
MOST_BYTES = 400_000


class WithMore(ForwardingStorage):
    """Lists objects that are not there, as a large operator's folder would."""

    more: tuple[ObjectInfo, ...] = ()

    def list(self, prefix: str = ""):
        below = self.more if self._above else ()
        return [*super().list(prefix), *(o for o in below if o.name.startswith(prefix))]


def made(version: int, subtask: int, parallelism: int) -> Coordinates:
    return Coordinates(
        version=version,
        max_parallelism=GROUPS,
        parallelism=parallelism,
        subtask=subtask,
        range=key_group_range_of(subtask, parallelism, GROUPS),
        epoch=1,
        run_key="0123456789abcdef",
        attempt_id=version,
        random_id=f"{version:024x}",
    )


def listed(version: int, parallelism: int):
    """The marker and the manifest of each subtask."""
    modified = STARTED + timedelta(seconds=version)
    for subtask in range(parallelism):
        by = made(version, subtask, parallelism)
        names = layout.marker_name(by), layout.manifest_name(by, 1, 7, FIGURES)
        yield from (ObjectInfo(name=n, size=7, modified=modified) for n in names)


def put(root, version: int, subtask: int, parallelism: int) -> None:
    by = made(version, subtask, parallelism)
    files = [
        StateFile(name=layout.data_name(age, "toy"), size=10**6, range=by.range)
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
    for subtask in range(parallelism):
        put(root, versions + 1, subtask, parallelism)
    root.more = tuple(o for v in range(versions, 0, -1) for o in listed(v, parallelism))
    return root


@pytest.fixture(scope="module", params=[(10_000, 1), (100, 50)], ids=["versions", "subtasks"])
def root(request):
    return large(*request.param)


@pytest.mark.parametrize(
    "path", ["/", PATH, f"{PATH}?last=1000", f"{PATH}/groups", f"{PATH}/files"]
)
def test_a_page_does_not_take_long(root, new_console, path):
    fresh = new_console(root)
    began = time.process_time()
    page = fresh.page(path)
    assert time.process_time() - began < MOST_CPU_S
    assert "10,001" in page or ">101<" in page
    assert len(page) < MOST_BYTES
