"""An altered file gives the right answer or an error, never a wrong value."""

from __future__ import annotations

import struct

import attrs
import msgpack
import pytest
from xxhash import xxh3_64_intdigest

from forebay_backend_lsm.files import SortedFile
from forebay_backend_lsm.files.layout import _FIELDS, FOOTER_BYTES, MAGIC
from forebay_state_api.contract.files import StateFile
from forebay_state_api.errors import CorruptStateError, StateMigrationError

CONTENT = {bytes([i, i]): (i % 2, b"" if i % 2 else b"v%d" % i, i) for i in range(12)}


@pytest.fixture(params=["lz4", "none"])
def written(request, model, storage):
    """A small file of several blocks and two tables, and its content."""
    h = model.header("a", ttl=True)
    tables = [(h, CONTENT), (model.header("b", "list"), {b"\x03": (2, b"elements", 0)})]
    options = {"compression": request.param, "block_bytes": 100}
    file = model.write(storage, "d/f", tables, **options)
    return file, model.read_all(storage, file)


@pytest.mark.long
def test_every_altered_byte_is_found_or_harmless(model, storage, written):
    file, right = written
    good = storage.get(file.name)
    harmless = []
    for manifest in (file, StateFile(name=file.name, size=file.size, range=file.range)):
        for i in range(len(good)):
            flip = (0x01, 0x80, 0xFF)[i % 3]
            storage.put(file.name, good[:i] + bytes([good[i] ^ flip]) + good[i + 1 :])
            try:
                found = model.read_all(storage, manifest)
            except CorruptStateError:  # found
                continue
            assert found == right
            harmless.append(i)
    # Readers of blocks check everything except the magic at the beginning.
    assert set(harmless) <= set(range(8))


@pytest.mark.long
def test_every_truncation_is_found(model, storage, written):
    file, _ = written
    good = storage.get(file.name)
    for length in range(len(good)):
        storage.put(file.name, good[:length])
        with pytest.raises(CorruptStateError, match="d/f"):
            model.read_all(storage, file)


def test_a_file_that_is_longer_is_read_as_it_was(model, storage, written):
    file, right = written
    storage.put(file.name, storage.get(file.name) + b"more")
    assert model.read_all(storage, file) == right


def test_another_file_in_its_place_is_found(model, storage, written):
    file, _ = written
    other = model.write(storage, "other", [(model.header("a"), CONTENT)])
    storage.put(file.name, storage.get("other")[: file.size].ljust(file.size, b"\0"))
    with pytest.raises(CorruptStateError):
        SortedFile.open(storage, file)
    storage.put(file.name, storage.get("other"))
    lying = StateFile(name=file.name, size=other.size, range=file.range, meta=file.meta)
    with pytest.raises(CorruptStateError):
        SortedFile.open(storage, lying)
    lying.meta["tail"] = other.meta["tail"]
    with pytest.raises(CorruptStateError, match="not the file that the manifest names"):
        SortedFile.open(storage, lying)


def test_an_altered_block_is_named(model, storage, written):
    file, _ = written
    table = SortedFile.open(storage, file).tables["a"]
    offset, length = table.location(1)
    good = bytearray(storage.get(file.name))
    good[offset + length // 2] ^= 4
    storage.put(file.name, bytes(good))
    with pytest.raises(CorruptStateError, match=rf"'d/f', state 'a': block 1 at offset {offset} "):
        model.read_all(storage, file)


def test_a_newer_format_says_what_to_install(model, storage, written):
    file, _ = written
    data = storage.get(file.name)
    footer = bytearray(data[-FOOTER_BYTES:])
    struct.pack_into("<I", footer, 48, 2)
    struct.pack_into("<Q", footer, 64, xxh3_64_intdigest(bytes(footer[:64])))
    storage.put(file.name, data[:-FOOTER_BYTES] + bytes(footer))
    plain = StateFile(name=file.name, size=file.size, range=file.range)
    with pytest.raises(StateMigrationError, match="format version 2"):
        SortedFile.open(storage, plain)


@pytest.mark.long
def test_indexes_that_nobody_wrote_under_right_checksums(storage, written, forged):
    """Opening a file either succeeds or raises an error that names the file."""
    file, _ = written
    good = storage.get(file.name)
    fields = [*_FIELDS.unpack_from(good[-FOOTER_BYTES:])]
    tail, index, length = fields[:3]
    plain, named = msgpack.unpackb(good[index : index + length]), 0
    for changed in forged(plain):
        packed = msgpack.packb(changed)
        fields[2], fields[5] = len(packed), xxh3_64_intdigest(good[tail:index] + packed)
        footer = _FIELDS.pack(*fields)
        checksum = struct.pack("<Q", xxh3_64_intdigest(footer))
        data = good[:index] + packed + footer + checksum + MAGIC
        storage.put(file.name, data)
        bad = attrs.evolve(file, size=len(data), meta={})
        try:
            SortedFile.open(storage, bad)
        except CorruptStateError as error:
            named += file.name in str(error)
    assert named > 50
