"""Costs of the compaction service: ``python -m benchmarks.compaction_gateway`` (two minutes).

Measures round trips of empty jobs through gateway and worker, jobs per second, the gateway's
memory, and how fast one and two workers merge sorted files compared with a merge in this process.
Everything runs on one machine: client, gateway and workers share its cores.
"""

from __future__ import annotations

import os
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from benchmarks.report import Line, benchmark
from forebay_backend_lsm.compactor import LsmCompactor
from forebay_backend_lsm.files import CellKind, Cells, TableHeader, write_file
from forebay_compaction_ray.client.gateway import Gateway
from forebay_compaction_ray.credentials import Credentials
from forebay_compaction_ray.gateway.limits import GatewayLimits
from forebay_compaction_ray.messages import Submission
from forebay_compaction_ray.ray_server.cluster import connected, start_gateway
from forebay_compaction_ray.ray_server.spec import GatewaySpec
from forebay_compaction_ray.worker.body import WorkerStorage
from forebay_state_api.contract.compaction_job import CompactionJob
from forebay_state_api.contract.compaction_service import CompactionPhase
from forebay_state_api.contract.file_names import compaction_prefix
from forebay_state_api.contract.files import StateFile
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.storage.opening import open_storage

GROUPS: Final = KeyGroupRange(0, 127)
OPERATOR: Final = "query/op"
RUNS: Final = 6
REPETITIONS: Final = 5


def job_of(inputs: list[StateFile], file_format: str) -> CompactionJob:
    number = secrets.token_hex(12)
    return CompactionJob(
        id=number,
        operator=OPERATOR,
        format=file_format,
        inputs=inputs,
        output_prefix=compaction_prefix(0),
        range=GROUPS,
        now_us=time.time_ns() // 1000,
        target_bytes=64 << 20,
        options={"bottom": True, "number": number},
    )


def submission(job: CompactionJob) -> Submission:
    return Submission(job=job, storage="default")


def done(gateway: Gateway, job: CompactionJob) -> None:
    """Run one job as the client of a query does, until it is known to be done."""
    view = gateway.submit(submission(job))
    while not view.phase.ended:
        view = gateway.poll(job.id, 10.0)
    if view.phase is not CompactionPhase.DONE:
        raise SystemExit(f"{view.phase}: {view.message}")


def round_trips(gateway: Gateway, count: int) -> list[float]:
    times = []
    for _ in range(count):
        job = job_of([], "nothing-1")
        began = time.perf_counter()
        done(gateway, job)
        times.append(time.perf_counter() - began)
    return times


def jobs_per_second(address: str, count: int, threads: int) -> float:
    gateways = [Gateway(address, Credentials, timeout_s=10.0) for _ in range(4)]

    def one(number: int) -> None:
        done(gateways[number % len(gateways)], job_of([], "nothing-1"))

    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as crowd:
        list(crowd.map(one, range(count)))
    seconds = time.perf_counter() - began
    for gateway in gateways:
        gateway.close()
    return count / seconds


def runs_of(state_dir: str, name: str, cells: int) -> list[StateFile]:
    """The sorted files of one operator, which overlap by half."""
    storage = open_storage(state_dir, {}).child(OPERATOR)
    kinds = {"kind": "value", "key": "bytes", "value": "bytes", "user_key": None, "ttl": False}
    header = TableHeader("t", {"name": "t", **kinds}, ttl=False)
    generator = np.random.default_rng(7)
    files = []
    for run in range(RUNS):
        numbers = np.sort(generator.choice(2 * cells, cells, replace=False))
        addresses = (numbers % 128 << 48 | numbers).astype(np.uint64)
        keys = [b"k%012d" % n for n in numbers]
        values = [os.urandom(32) * 2 for _ in numbers]
        found = Cells.of(addresses, CellKind.PUT, keys, values).sorted()
        files.append(write_file(storage, f"data/{name}-{run}", [(header, [found])], range=GROUPS))
    return files


def seconds_of(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def merged_here(state_dir: str, inputs: list[StateFile]) -> float:
    storage = open_storage(state_dir, {}).child(OPERATOR)
    compactor, job = LsmCompactor(), job_of(inputs, LsmCompactor.format)
    return seconds_of(lambda: compactor.compact(job, storage, lambda: False))


def merged_there(gateway: Gateway, inputs: list[StateFile], at_once: int, each: int) -> float:
    def one(_: int) -> None:
        done(gateway, job_of(inputs, LsmCompactor.format))

    with ThreadPoolExecutor(at_once) as crowd:
        return seconds_of(lambda: list(crowd.map(one, range(at_once * each))))


def mebibytes_of(pid: int) -> float:
    """Return the memory of a process, with its share of the memory shared with others."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc does not show the memory of process {pid}")


def measure_trips(gateway: Gateway, trips: int) -> Line:
    """Measure empty jobs, one after the other."""
    round_trips(gateway, min(50, trips))
    times = [1e3 * seconds for seconds in round_trips(gateway, trips)]
    return Line(
        what="empty job, submitted until known to be done, one at a time",
        values=times,
        bound=5,
        at_least=False,
        unit="ms",
        detail=f"95 % within {sorted(times)[int(len(times) * 0.95)]:.2f} ms",
    )


def measure_rate(address: str, jobs: int, repetitions: int) -> Line:
    """Measure empty jobs from many threads at once."""
    few = jobs_per_second(address, jobs, 4)
    return Line(
        what="empty jobs, 16 threads submit",
        values=[jobs_per_second(address, jobs, 16) for _ in range(repetitions)],
        bound=300,
        at_least=True,
        unit="jobs/s",
        detail=f"4 threads: {few:.0f} jobs/s",
    )


def measure_merges(
    gateway: Gateway, state_dir: str, cells: int, merges: int, repetitions: int
) -> list[Line]:
    """Measure merges in this process, by one worker, and by two at once, in turn."""
    inputs = runs_of(state_dir, "runs", cells)
    mebibytes = sum(file.size for file in inputs) / 2**20
    here, one, two = [], [], []
    for _ in range(repetitions):
        here.append(statistics.median(merged_here(state_dir, inputs) for _ in range(merges)))
        one.append(merged_there(gateway, inputs, 1, merges) / merges)
        two.append(merged_there(gateway, inputs, 2, merges) / merges / 2)
    mine, single, double = (statistics.median(column) for column in (here, one, two))
    return [
        Line(
            what=f"merge of {mebibytes:.0f} MiB: a worker's speed ÷ this process's speed",
            values=[a / b for a, b in zip(here, one, strict=True)],
            bound=0.9,
            at_least=True,
            detail=f"{single:.2f} / {mine:.2f} s a merge",
        ),
        Line(
            what="the same: two workers at once ÷ one, merges/s",
            values=[a / b for a, b in zip(one, two, strict=True)],
            bound=1.7,
            at_least=True,
            detail=f"{double:.2f} / {single:.2f} s a merge",
        ),
    ]


def measure(state_dir: str, *, trips: int, jobs: int, cells: int, merges: int) -> list[Line]:
    """Run all measurements on a separate Ray."""
    import ray

    limits = GatewayLimits(queue=1000)
    storages = {"default": WorkerStorage(state_dir)}
    spec = GatewaySpec(host="127.0.0.1", port=0, workers=2, storages=storages, limits=limits)
    actor, address = start_gateway(spec, name="benchmark", detached=False)
    gateway = Gateway(address, Credentials, timeout_s=10.0)
    while gateway.hello().workers < 2:
        time.sleep(0.1)
    pid = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))
    idle = mebibytes_of(pid)
    lines = [
        measure_trips(gateway, trips),
        measure_rate(address, jobs, REPETITIONS),
        *measure_merges(gateway, state_dir, cells, merges, REPETITIONS),
    ]
    used = mebibytes_of(pid)
    gateway.close()
    memory = Line(
        what="memory of the idle gateway",
        values=[idle * 2**20 / 1e6],
        bound=120,
        at_least=False,
        unit="MB",
        detail=f"after all of this {used * 2**20 / 1e6:.0f} MB",
    )
    return [*lines, memory]


@benchmark("compaction-gateway")
@click.option("--trips", default=500, show_default=True)
@click.option("--jobs", default=2000, show_default=True, help="Empty jobs of one repetition.")
@click.option("--cells", default=150_000, show_default=True, help="Entries of each merged file.")
@click.option("--merges", default=3, show_default=True, help="Merges of one repetition.")
def main(**sizes: int) -> list[Line]:
    """Measure the compaction service."""
    with tempfile.TemporaryDirectory() as state_dir, connected("local", cpus=2):
        return measure(state_dir, **sizes)


if __name__ == "__main__":
    main()
