"""Sorted files compacted by a worker and in the job have the same bytes, whatever their content."""

from __future__ import annotations

import struct

import attrs
import numpy as np
import pytest
from compaction_ray_toys import PATIENCE_S, Hurried, ThreadPool, happened, job, running

from forebay_backend_lsm.compactor import LsmCompactor
from forebay_backend_lsm.files import CellKind, Cells, TableHeader, write_file
from forebay_compaction_ray.client.service import RemoteCompactionService
from forebay_compaction_ray.gateway.limits import GatewayLimits
from forebay_compaction_ray.options import RemoteOptions
from forebay_state_api.contract.checksummed import unseal
from forebay_state_api.contract.compaction_job import CompactionResult
from forebay_state_api.contract.compaction_service import CompactionFault, CompactionPhase
from forebay_state_api.contract.files import StateFile
from forebay_state_api.errors import CorruptStateError
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.storage.opening import open_storage

GROUPS = KeyGroupRange(0, 15)
PUT, DELETE, APPEND, CLEAR = CellKind
FORMAT = LsmCompactor.format


def header(kind, *, ttl):
    kinds = {"key": "bytes", "value": "bytes", "user_key": None}
    return TableHeader("t", {"name": "t", "kind": kind, "ttl": ttl, **kinds}, ttl)


def cells_of(rows, *, times):
    """Make cells of ``rows``: (key group, key) → (kind, value, time)."""
    addresses = [group << 48 | int.from_bytes(key[:4], "big") for group, key in rows]
    return Cells.of(
        np.array(addresses, np.uint64),
        np.array([kind for kind, _, _ in rows.values()], np.uint8),
        [key for _, key in rows],
        [value for _, value, _ in rows.values()],
        [time for _, _, time in rows.values()] if times else None,
    ).sorted()


def write(storage, name, rows, *, kind="value", ttl=False):
    table = header(kind, ttl=ttl)
    cells = [cells_of(rows, times=table.has_times)]
    return write_file(storage.child("query/op"), f"data/{name}", [(table, cells)], range=GROUPS)


def elements(*items):
    lengths = b"".join(struct.pack("<I", len(item)) for item in items)
    return struct.pack("<I", len(items)) + lengths + b"".join(items)


def rows(count, kind=PUT, value=b"value", time=0, step=1):
    return {
        (n % 16, n.to_bytes(4, "big")): (kind, value + b"%d" % n if value else b"", time)
        for n in range(0, count, step)
    }


def overwritten(storage):
    old = write(storage, "a", rows(3000))
    new = write(storage, "b", rows(3000, value=b"new", step=3))
    return [old, new], {"bottom": True}


def with_tombstones_kept(storage):
    old = write(storage, "a", rows(500))
    new = write(storage, "b", rows(500, DELETE, b"", step=2))
    return [old, new], {"bottom": False}


def with_tombstones_dropped(storage):
    files, _ = with_tombstones_kept(storage)
    return files, {"bottom": True}


def expired_at_the_bottom(storage):
    file = write(storage, "a", {**rows(50, time=5), **rows(50, time=900, step=2)}, ttl=True)
    return [file], {"bottom": True, "ttl": {"t": 500}}


def expired_above(storage):
    files, options = expired_at_the_bottom(storage)
    return files, {**options, "bottom": False}


def appended(storage):
    first = {k: (PUT, elements(b"x", b"yy"), 0) for k in rows(99)}
    second = {k: (APPEND, elements(b"z"), 0) for k in rows(99, step=2)}
    files = [
        write(storage, name, found, kind="list") for name, found in (("a", first), ("b", second))
    ]
    return files, {"bottom": True}


def clipped(storage):
    files, options = overwritten(storage)
    old, new = files
    return [attrs.evolve(old, range=KeyGroupRange(0, 7)), new], options


def empty(storage):
    old = write(storage, "a", rows(100))
    return [old, write(storage, "b", rows(100, DELETE, b""))], {"bottom": True}


CASES = [
    overwritten,
    with_tombstones_kept,
    with_tombstones_dropped,
    expired_at_the_bottom,
    expired_above,
    appended,
    clipped,
    empty,
]


@pytest.fixture
def storage(state_dir):
    return open_storage(state_dir, {})


@pytest.fixture
def remote(state_dir, storage):
    pool = ThreadPool({"default": state_dir}, {FORMAT: LsmCompactor()})
    limits = GatewayLimits(ping_every_s=0.05)
    with running(pool, storages=["default"], limits=limits) as gateway:
        options = RemoteOptions(addresses=(gateway.address,), min_bytes=0)
        with RemoteCompactionService(storage, options) as client:
            yield client


@pytest.fixture
def local(storage):
    """The same service with an absent gateway, so that it falls back."""
    options = RemoteOptions(addresses=("127.0.0.1:1",), min_bytes=0, request_retries=0)
    with RemoteCompactionService(storage, options) as client:
        yield client


def prepared(files, options, target_bytes):
    fresh = job(file_format=FORMAT, inputs=files)
    return attrs.evolve(
        fresh, range=GROUPS, now_us=1000, target_bytes=target_bytes, options=options
    )


def written(client, storage, given):
    """Return all outputs below the job's prefix, by their names without the run's folder."""
    client.submit(given)
    status = client.poll(given.id, PATIENCE_S)
    assert status.phase is CompactionPhase.DONE, status
    here, prefix = storage.child(given.operator), given.output_prefix
    found = {info.name: here.get(info.name) for info in here.list(prefix)}
    result = CompactionResult.from_plain(unseal(found.pop(given.result_name)))
    del found[given.claim_name]
    client.verify(given, result)
    outputs = {name.removeprefix(prefix).partition("/")[2]: found[name] for name in found}
    assert len(outputs) == len(found)
    return outputs, result


@pytest.mark.parametrize("target_bytes", [1, 1 << 20])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_here_and_there_the_same_bytes_are_written(storage, local, remote, case, target_bytes):
    files, options = case(storage)
    away, result = written(remote, storage, prepared(files, options, target_bytes))
    here, _ = written(local, storage, prepared(files, options, target_bytes))
    assert away == here
    assert bool(away) is (case is not empty)
    assert result.entries_in == result.entries_out + result.entries_dropped
    assert (happened(remote, "fallbacks"), happened(local, "fallbacks")) == (0, 1)


def test_verification_reads_footers(storage):
    options = RemoteOptions(addresses=("127.0.0.1:1",))
    with RemoteCompactionService(storage, options) as client:
        file = write(storage, "a", rows(3000))
        given = job(file_format=FORMAT, inputs=[file])
        here = storage.child("query/op")
        result = CompactionResult(
            outputs=[file], entries_in=3000, entries_out=3000, entries_dropped=0
        )
        client.verify(given, result)
        data = bytearray(here.get(file.name))
        data[200] ^= 1  # in a block
        here.delete([file.name])
        here.put(file.name, bytes(data))
        client.verify(given, result)
        here.delete([file.name])
        here.put(file.name, bytes(data[:-1]) + bytes([data[-1] ^ 1]))
        with pytest.raises(CorruptStateError):
            client.verify(given, result)


@pytest.mark.long
@pytest.mark.parametrize(
    ("damage", "strategy", "fault"),
    [
        ("missing", "fallback", CompactionFault.CORRUPTION),
        ("altered", "fallback", CompactionFault.CORRUPTION),
        ("missing", "fail", CompactionFault.CORRUPTION),
        ("altered", "fail", CompactionFault.UNAVAILABLE),  # opening the file does not show it
    ],
)
def test_inputs_that_are_not_what_was_written(storage, remote, damage, strategy, fault):
    files, options = overwritten(storage)
    here, name = storage.child("query/op"), files[0].name
    data = bytearray(here.get(name))
    here.delete([name])
    if damage == "altered":
        data[100] ^= 0x55
        here.put(name, bytes(data))
    given = prepared(files, options, 1 << 20)
    asked = RemoteOptions(
        addresses=remote.gateways.endpoints.last_known, min_bytes=0, failure_strategy=strategy
    )
    with RemoteCompactionService(storage, asked, clock=Hurried()) as client:
        client.submit(given)
        status = client.poll(given.id, PATIENCE_S)
        assert (status.phase, status.fault) == (CompactionPhase.FAILED, fault)
        assert name in status.message
        assert happened(client, "fallbacks") == (strategy == "fallback")


def test_state_files_travel_whole():
    from forebay_compaction_ray.messages import Submission
    from forebay_compaction_ray.protocol import pack, unpack

    file = StateFile(name="data/a", size=1, range=GROUPS, meta={"first": 1 << 63, "lane": 0})
    given = Submission(job=job(inputs=[file]), storage="default")
    assert Submission.from_plain(unpack(pack(given.to_plain()))) == given
