"""Hundreds of faults of all kinds against one running query: it never stops, its state is right."""

from __future__ import annotations

import errno
import gc
import random
import threading
import time
from collections import Counter
from pathlib import Path

import attrs
import pytest
from compaction_ray_network import way_to
from compaction_ray_toys import RunningGateway, ThreadPool

from forebay_compaction_ray.client import endpoints
from forebay_compaction_ray.client.endpoints import Endpoints
from forebay_compaction_ray.credentials import Credentials
from forebay_state_api.errors import CorruptStateError, StorageError

FAULTS = 500
PACE = 20.0
"""Seconds of the client's clock in one second, so that its rests do not last."""
DESCRIPTORS = Path("/proc/self/fd")


class Stage:
    """A query behind a bad way to its gateway, and another gateway that is no good."""

    def __init__(self, way, query, stranger):
        self.way, self.query, self.stranger = way, query, stranger
        self.stops = []
        self.batch_s = []

    def process(self):
        """Let another process continue the query."""
        self.query.new_process(
            self.way.address,
            answer_s=0.3,
            clock=lambda: PACE * time.monotonic(),
            queue_timeout_s=10.0,
            security=lambda: Credentials(tokens=("right",)),
        )

    def batch(self):
        began_s = time.monotonic()
        try:
            self.query.batch(wait=False)
        except Exception as error:  # noqa: BLE001 - any of them stops a query
            self.stops.append(repr(error))
            self.process()
        self.batch_s.append(time.monotonic() - began_s)


def network(stage, rng):
    kind = rng.choice(["cut", "freeze", "close", "hold", "garbage", "slow", "part"])
    if kind == "freeze":
        stage.way.freeze()
    elif kind == "slow":
        stage.way.delay_s = rng.choice([0.02, 0.1, 0.2])
    elif kind == "part":
        stage.way.bytes_up = rng.randint(10, 1500)
    elif kind != "cut":
        stage.way.new = kind
    if kind not in ("freeze", "slow"):
        stage.way.cut()
    return kind


WORKERS_FAULTS = [
    MemoryError(),
    OSError(errno.EMFILE, "Too many open files"),
    OSError(errno.ENOSPC, "No space left on device"),
    RuntimeError("can't start new thread"),
    TimeoutError(),
    CorruptStateError("it is missing"),
    StorageError("throttled", transient=True),
    KeyError("a defect"),
]


def worker(stage, rng):
    fault = rng.choice(WORKERS_FAULTS)
    stage.query.compactor.faults = [fault] * rng.randint(1, 4)
    return repr(fault)


def death(stage, rng):
    stage.query.body.deaths = rng.randint(1, 4)
    return f"{stage.query.body.deaths} deaths"


def damaged_result(stage, rng):
    if rng.random() < 0.5:
        stage.query.body.damages = [lambda data: data[:-1]]
        return "torn result"
    stage.query.body.damages = [lambda data: data[:-1] + bytes([data[-1] ^ 1])]
    return "altered result"


def gateway(stage, rng):
    kind = rng.choice(["restart", "drain", "no workers", "token", "limits", "full"])
    running = stage.query.gateway
    if kind == "restart":
        stage.query.new_gateway(security=Credentials(tokens=("right",)))
    elif kind == "drain":
        running.on_loop(running.core.drain)
    elif kind == "no workers":
        running.on_loop(lambda: running.core.worker_set.scale(0))
    elif kind == "token":
        running.security = Credentials(tokens=("another",))
    elif kind == "limits":
        running.core.limits = attrs.evolve(running.core.limits, job_bytes=1)
    else:
        running.core.limits = attrs.evolve(running.core.limits, queue=0)
    return kind


def process(stage, rng):
    stage.process()
    return "process"


def strange_gateway(stage, rng):
    Endpoints(stage.query.root).add(stage.stranger.address)
    return "strange gateway"


KINDS = [network, network, worker, worker, death, damaged_result, gateway, process, strange_gateway]


def mend(stage):
    way, query = stage.way, stage.query
    way.new, way.delay_s, way.bytes_up = "pass", 0.0, None
    query.compactor.faults = []
    query.body.deaths, query.body.damages = 0, []
    Endpoints(query.root).remove(stage.stranger.address)
    running = query.gateway
    if running.core.draining.is_set():
        query.new_gateway(security=Credentials(tokens=("right",)))
        return
    running.security = Credentials(tokens=("right",))
    limits = running.core.limits
    running.core.limits = attrs.evolve(limits, job_bytes=1 << 33, queue=64)
    running.on_loop(lambda: running.core.worker_set.scale(1))


def settle(stage):
    """Mend everything, and wait until nothing is under way."""
    mend(stage)
    stage.query.settle()
    stage.process()
    for _ in range(12):
        stage.batch()
        stage.query.settle()
    gc.collect()


def used():
    descriptors = len(list(DESCRIPTORS.iterdir())) if DESCRIPTORS.is_dir() else 0
    names = (thread.name.rstrip("0123456789_-") for thread in threading.enumerate())
    threads = Counter(name for name in names if name != "forebay-lsm-read")  # a bounded pool
    return threads, descriptors


@pytest.fixture
def stage(query, tmp_path, monkeypatch):
    monkeypatch.setattr(endpoints, "REREAD_S", PACE * 0.05)
    elsewhere = ThreadPool({"default": str(tmp_path)}, {})
    stranger = RunningGateway(
        elsewhere, storages=["default"], security=Credentials(tokens=("right",))
    )
    compact = query.compactor.compact
    query.compactor.faults = []

    def faulty(*given):
        if query.compactor.faults:
            raise query.compactor.faults.pop()
        return compact(*given)

    query.compactor.compact = faulty
    query.new_gateway(security=Credentials(tokens=("right",)))
    with way_to(query.gateway.address) as way:
        yield Stage(way, query, stranger)
    stranger.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_no_fault_of_the_service_stops_a_query(stage, seed):
    rng, seen = random.Random(seed), Counter()
    settle(stage)
    before = used()
    stage.batch_s.clear()
    for _ in range(FAULTS):
        seen[rng.choice(KINDS)(stage, rng)] += 1
        for _ in range(rng.randint(1, 3)):
            stage.batch()
        if rng.random() < 0.5:
            stage.query.settle()
        mend(stage)
        stage.batch()
    batch_s = sorted(stage.batch_s)
    settle(stage)
    after = used()
    query = stage.query
    counts = {name: query.count(name) for name in ("submitted", "done", "lost", "fallbacks")}
    median_s = batch_s[len(batch_s) // 2]
    print(  # noqa: T201 - `pytest -s` shows it
        f"{seen}\n{counts}\nmedian {1000 * median_s:.1f} ms, worst {1000 * batch_s[-1]:.0f} ms\n"
        f"threads, descriptors: {before} before, {after} after"
    )
    assert stage.stops == []
    query.check()
    assert query.count("done") > FAULTS / 20
    assert query.count("fallbacks") > 0
    assert after[0].total() <= before[0].total() + 4
    assert after[1] <= before[1] + 10
    assert median_s < 0.05
