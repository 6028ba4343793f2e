"""The bytes of a file stay readable in all releases; altered bytes are never accepted."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import attrs
import msgpack
import numpy as np
import pytest
from xxhash import xxh3_64_intdigest

from forebay_backend_heap import encoding, file_reader
from forebay_backend_heap.file_chain import Chain
from forebay_backend_heap.file_reader import Reader
from forebay_backend_heap.files import (
    _PREFIX,
    FORMAT_VERSION,
    MAGIC,
    FileRole,
    Operation,
    file_bytes,
    parse_head,
    seal_of,
)
from forebay_backend_heap.resident import Resident
from forebay_state_api.contract.changes import ABSENT, Shape
from forebay_state_api.errors import CorruptStateError, StateMigrationError
from forebay_state_api.keys import KeyGroupRange


def specs_of(kit):
    return {
        "totals": kit.spec("totals", value=tuple[int, float | None], key=tuple[str, int]),
        "log": kit.spec("log", Shape.LIST, value=Decimal, key=tuple[str, int], ttl=True),
        "days": kit.spec("days", Shape.MAP, value=None, user_key=date, key=tuple[str, int]),
    }


def content():
    a, b = ("a", 1), ("b", -(1 << 40))
    return {
        "totals": {(None, a): (1, 2.5), (None, b): (1 << 70, None), ("w", a): (0, -0.5)},
        "log": {(None, b): [(10, Decimal("1.50")), (20, Decimal(-3))]},
        "days": {(None, a): {date(2024, 2, 29): ["x", (1, b"\x00")], date(1, 1, 1): None}},
    }


def write(kit, job):
    """Commit a snapshot and a delta that together hold `content`."""
    specs = specs_of(kit)
    batch = job.begin(specs.values())
    a, b = ("a", 1), ("b", -(1 << 40))
    for i in range(60):
        batch.put("totals", ("k", i), (i, 0.0))
    batch.append("log", b, [(10, Decimal("1.50"))])
    batch.entries("days", a, {date(2024, 2, 29): ["x", (1, b"\x00")], date(2000, 1, 1): 5})
    job.commit(batch)
    batch = job.begin(specs.values())
    for i in range(60):
        batch.put("totals", ("k", i), ABSENT)
    batch.put("totals", a, (1, 2.5))
    batch.put("totals", b, (1 << 70, None))
    batch.put("totals", a, (0, -0.5), "w")
    batch.append("log", b, [(20, Decimal(-3))])
    batch.entries("days", a, {date(1, 1, 1): None, date(2000, 1, 1): ABSENT})
    return job.commit(batch)


def test_what_is_written_reads_back(kit, job):
    write(kit, job)
    kit.new_process()
    batch = job.begin(specs_of(kit).values())
    assert {name: batch.content(name) for name in batch.tables} == content()


def damaged(kit, job, damage):
    """Damage one file of a version; yield a function that opens the version."""
    state = write(kit, job)
    reader = Reader(job.storage, "job", "op", 2)
    for file in state.files:
        good = job.storage.get(file.name)
        for bad in damage(good):
            job.storage.put(file.name, bad)
            yield file, reader
        job.storage.put(file.name, good)


@pytest.mark.long
def test_every_altered_byte_is_found(kit, job):
    def flips(good):
        for i in range(len(good)):
            yield good[:i] + bytes([good[i] ^ 0x41]) + good[i + 1 :]

    for file, reader in damaged(kit, job, flips):
        with pytest.raises(CorruptStateError, match="version 2") as caught:
            reader.read(file)
        assert file.name in str(caught.value)


@pytest.mark.long
def test_every_truncation_is_found(kit, job):
    for file, reader in damaged(kit, job, lambda good: (good[:i] for i in range(len(good)))):
        with pytest.raises(CorruptStateError, match="version 2"):
            reader.read(file)


def test_an_altered_chunk_names_the_state(kit, job):
    def last(good):
        yield good[:-1] + bytes([good[-1] ^ 1])

    for file, reader in damaged(kit, job, last):
        with pytest.raises(CorruptStateError, match=r"state .(totals|log|days). of operator .op."):
            reader.read(file)


@pytest.mark.long
def test_altered_bytes_are_found_in_a_part_too(kit, job, monkeypatch):
    monkeypatch.setattr(file_reader, "_WORTH_RANGES", 0)
    monkeypatch.setattr(encoding, "CHUNK_CELLS", 2)
    state = write(kit, job)
    file = attrs.evolve(state.files[0], range=KeyGroupRange(0, 1))
    good = job.storage.get(file.name)
    found = 0
    for i in range(len(good)):
        job.storage.put(file.name, good[:i] + bytes([good[i] ^ 0x41]) + good[i + 1 :])
        try:
            Reader(job.storage, "job", "op", 2).read(file)
        except CorruptStateError:
            found += 1
    assert file.meta["header"] < found < len(good)


def test_another_file_in_its_place_is_found(kit, job):
    state = write(kit, job)
    file = state.files[0]
    other = file_bytes(FileRole.SNAPSHOT, 1, [])
    job.storage.put(file.name, other.data + b"x" * (file.size - len(other.data)))
    with pytest.raises(CorruptStateError, match="header"):
        Reader(job.storage, "job", "op", 2).read(file)


def test_a_missing_file_is_corrupt_state(kit, job):
    state = write(kit, job)
    job.storage.delete([state.files[1].name])
    with pytest.raises(CorruptStateError, match="it is missing"):
        Reader(job.storage, "job", "op", 2).read_all(state.files)


def test_a_newer_format_says_what_to_install():
    data = bytearray(file_bytes(FileRole.DELTA, 1, []).data)
    data[7] = 2
    with pytest.raises(StateMigrationError, match="format version 2"):
        parse_head(bytes(data), "file f")


def test_a_part_of_a_file_is_read_for_a_part_of_the_groups(kit, job, monkeypatch):
    monkeypatch.setattr(file_reader, "_WORTH_RANGES", 0)
    spec = kit.spec("big", value=bytes)
    batch = job.begin([spec])
    for key in range(16 * 1024):
        batch.put("big", key, bytes(20))
    job.commit(batch)
    asked = []
    original = type(job.storage).get_ranges
    monkeypatch.setattr(
        type(job.storage),
        "get_ranges",
        lambda self, name, ranges: asked.extend(ranges) or original(self, name, ranges),
    )
    kit.new_process()
    batch = job.begin([spec], KeyGroupRange(4, 5))
    assert len(batch.content("big")) == 2 * 1024
    whole = Chain.of(job.opening(KeyGroupRange(0, 15)).parents).snapshots[0].size
    assert sum(length for _, length in asked) < whole * 0.5


def test_sections_are_clipped_by_chunks(kit, monkeypatch):
    monkeypatch.setattr(encoding, "CHUNK_CELLS", 4)
    spec = kit.spec("s", value=int)
    groups = np.arange(16, dtype=np.uint16)
    block = encoding.Block([None], None, list(range(16)), groups, list(range(16)))
    section = encoding.encode(spec, Operation.PUT, block, KeyGroupRange(0, 15))
    for start in range(16):
        for end in range(start, 16):
            clipped = section.clipped(KeyGroupRange(start, end))
            assert encoding.decode(clipped, spec).keys == list(range(start, end + 1))
            assert len(clipped.chunks) == end // 4 - start // 4 + 1
    assert section.clipped(KeyGroupRange(16, 20)) is None


@pytest.mark.long
def test_headers_that_nobody_wrote_under_right_checksums(kit, job, forged):
    """Opening and decoding a file raises an error that names it, or returns some cells."""
    state = write(kit, job)
    reader, named = Reader(job.storage, "job", "op", 2), 0
    specs = specs_of(kit).values()
    for file in state.files:
        good = job.storage.get(file.name)
        start = file.meta["header"]
        header = msgpack.unpackb(good[_PREFIX.size : start])
        for changed in forged(header):
            packed = msgpack.packb(changed)
            prefix = _PREFIX.pack(MAGIC, FORMAT_VERSION, len(packed), xxh3_64_intdigest(packed))
            job.storage.put(file.name, prefix + packed + good[start:])
            size = len(prefix + packed + good[start:])
            meta = {"header": len(prefix + packed), "checksum": seal_of(prefix + packed)}
            bad = attrs.evolve(file, size=size, meta={**file.meta, **meta})
            try:
                resident = Resident(file.range)
                resident.replay([reader.read(bad)])
                for spec in specs:
                    resident.table(spec)
            except StateMigrationError:  # it describes another state
                continue
            except CorruptStateError as error:
                named += file.name in str(error)
    assert named > 100
