"""DuckDB, Polars and pandas read a snapshot, in the lines of docs/how-to/look-into-state.md."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow
import pytest

from forebay_backend_heap.backend import HeapBackend
from forebay_state_api import ListStateDescriptor, ValueStateDescriptor
from forebay_state_api.storage.opening import open_storage
from forebay_state_processor.reading import open_state
from forebay_testing import KeyedJob

pytestmark = pytest.mark.servers

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "look-into-state.md"
LINES = re.compile(
    r"^# not run: tests/servers/test_state_readers[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL
)


def test_engines_read_a_snapshot_in_one_line(tmp_path):
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    job = KeyedJob(
        HeapBackend,
        open_storage(str(tmp_path)),
        descriptors=[ValueStateDescriptor("total", int), ListStateDescriptor("seen", int)],
        key_type=tuple[str, int],
    )
    job.do(("ann", 5), ("total.update", 12), ("seen.add", 7))
    job.do(("ann", 5), ("total.value",))
    (code,) = LINES.findall(PAGE.read_text(encoding="utf-8"))
    with open_state(str(tmp_path), query="query", uid="operator") as snapshot:
        names = {"snapshot": snapshot, "duckdb": duckdb, "polars": polars, "pyarrow": pyarrow}
        exec(compile(code, str(PAGE), "exec"), names)
    assert names["totals"] == [("ann", 12)]
    assert names["frame"].columns == ["key_1", "key_2", "namespace", "key_group", "seen", "total"]
    assert names["pandas_frame"]["total"].to_list() == [12]
