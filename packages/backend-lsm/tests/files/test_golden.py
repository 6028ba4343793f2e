"""Golden files of format 1 must stay readable in all releases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forebay_backend_lsm.files.checking import damage_of
from forebay_state_api.contract.files import StateFile
from forebay_state_api.keys import KeyGroupRange

GOLDEN = Path(__file__).parents[1] / "golden"
PUT, DELETE, APPEND, CLEAR = range(4)


def golden_tables(model):
    """Return the content of the golden files; in blocks of about 100 bytes."""
    values = {bytes([i % 16, i]): (PUT, b"value %d" % i, 1000 + i) for i in range(40)}
    values |= {bytes([i, 200]): (DELETE, b"", 999) for i in range(3)}
    plain = {b"\x05key": (PUT, b"", 0), b"\x05kex": (PUT, bytes(300), 0)}
    lists = {
        b"\x01l": (PUT, model.elements((1, b"a"), (2, b"")) + model.elements((3, b"ccc")), 0),
        b"\x02l": (APPEND, model.elements((9, b"z")), 0),
    }
    maps = {
        b"\x03\x01": (CLEAR, b"", 7),
        b"\x03\x01k1": (PUT, b"v1", 8),
        b"\x03\x01k2": (DELETE, b"", 8),
    }
    return [
        (model.header("list", "list", ttl=True), lists),
        (model.header("map", "map", ttl=True, user_key="bytes"), maps),
        (model.header("plain"), plain),
        (model.header("values", ttl=True), values),
    ]


def write_golden(model, storage, folder):
    """Write a golden file; the stored ones were made by this."""
    listed = []
    for compression in ("lz4", "zstd", "none"):
        name = f"lsm-1-{compression}"
        tables = golden_tables(model)
        file = model.write(storage, name, tables, compression=compression, block_bytes=100)
        (folder / name).write_bytes(storage.get(name))
        listed.append([name, file.size, dict(file.meta)])
    (folder / "files.json").write_text(json.dumps(listed, indent=1) + "\n")


@pytest.mark.parametrize(
    ("name", "size", "meta"), json.loads((GOLDEN / "files.json").read_text()), ids=str
)
def test_a_golden_file_stays_readable(model, storage, name, size, meta):
    storage.put(name, (GOLDEN / name).read_bytes())
    file = StateFile(name=name, size=size, range=KeyGroupRange(0, 15), meta=meta)
    assert model.read_all(storage, file) == {h.name: rows for h, rows in golden_tables(model)}
    assert damage_of(storage, file) == []


def test_what_is_written_today_is_a_golden_file(model, storage, tmp_path):
    write_golden(model, storage, tmp_path)
    # Compressors may change their output; without one, the format alone determines the bytes.
    name = "lsm-1-none"
    assert (tmp_path / name).read_bytes() == (GOLDEN / name).read_bytes()
