"""``forebay state export``: files, and objects on storage."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from forebay_state_api.storage.opening import open_storage

from .stored_job import START, lines


@pytest.mark.long
@pytest.mark.parametrize("ending", ["parquet", "arrow", "csv", "jsonl"])
def test_export(run, tmp_path, ending):
    target = tmp_path / f"out.{ending}"
    out, _ = run("export", target, "--state", "account")
    assert out == f"2 rows in {target}\n"
    read = {
        "parquet": lambda: pq.read_table(target).to_pylist(),
        "arrow": lambda: pa.ipc.open_file(target).read_all().to_pylist(),
        "csv": lambda: pa.csv.read_csv(target).to_pylist(),
        "jsonl": lambda: lines(target.read_text()),
    }
    rows = read[ending]()
    assert {row["key_1"] for row in rows} == {"ann", "bob, jr"}
    value = {row["key_1"]: row["value"] for row in rows}["ann"]
    assert (json.loads(value) if ending == "csv" else value) == {"owner": "ann", "cents": 99}
    assert "exists: pass --overwrite" in run("export", target, status=2)[1]
    columns = "key_1,namespace,last,last expires"
    run("export", target, "--overwrite", "--columns", columns)
    rows = read[ending]()
    assert ",".join(rows[0]) == columns
    assert len(rows) == 3  # ann in two namespaces
    (at,) = [row["last expires"] for row in rows if row["last"]]
    at = at if isinstance(at, datetime) else datetime.fromisoformat(at)
    assert at == START + timedelta(hours=1)
    assert not [*tmp_path.glob(".forebay-export-*")]


@pytest.mark.long
def test_export_to_storage_and_in_parts(run, tmp_path):
    target = f"memory://{tmp_path.name}/copies/rows.parquet"
    report = json.loads(run("export", target, "--rows-per-file", 2, "--json")[0])
    names = [f"{target}/part-{number:05d}.parquet" for number in (0, 1)]
    assert (report["rows"], report["files"], report["version"]) == (3, names, 2)
    storage = open_storage(target)
    parts = [pq.read_table(pa.BufferReader(storage.get(one.name))) for one in storage.list()]
    assert [part.num_rows for part in parts] == [2, 1]
    run("export", target)
    assert "exists: pass --overwrite" in run("export", target, status=2)[1]
    run("export", tmp_path / "folder", "--format", "csv", "--rows-per-file", 2)
    assert len([*(tmp_path / "folder").iterdir()]) == 2


def test_an_export_names_its_faults(run, tmp_path):
    assert "the format of" in run("export", tmp_path / "out.txt", status=2)[1]
    assert "there is no directory" in run("export", tmp_path / "no" / "out.csv", status=2)[1]
    assert "--flat needs --state" in run("export", tmp_path / "out.csv", "--flat", status=2)[1]
    os.mkfifo(tmp_path / "pipe.csv")
    refused = run("export", tmp_path / "pipe.csv", "--overwrite", status=2)[1]
    assert "pipe.csv is no file" in refused
    assert (tmp_path / "pipe.csv").is_fifo()
