"""What the compaction service costs: ``python -m benchmarks.compaction_gateway`` (two minutes).

Round trips of empty jobs through gateway and worker, jobs per second, the gateway's memory, and how
fast one and two workers merge sorted files against a merge in this process. Everything runs on one
machine: client, gateway and workers share its cores.
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

from forebay_backend_lsm.compactor import LsmCompactor
from forebay_backend_lsm.files import Cells, Kind, TableHeader, write_file
from forebay_compaction_ray.client.gateway import Gateway
from forebay_compaction_ray.gateway.limits import GatewayLimits
from forebay_compaction_ray.messages import Submission
from forebay_compaction_ray.options import ClientSecurity
from forebay_compaction_ray.ray_server.cluster import connected, start_gateway
from forebay_compaction_ray.ray_server.spec import GatewaySpec
from forebay_compaction_ray.worker.body import StoragePlace
from forebay_state_api.backend import StateFile
from forebay_state_api.compaction import CompactionJob, CompactionPhase
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.storage import open_storage

GROUPS: Final = KeyGroupRange(0, 127)
OPERATOR: Final = "query/op"
RUNS: Final = 6
CELLS: Final = 150_000


def job_of(inputs: list[StateFile], file_format: str) -> CompactionJob:
    number = secrets.token_hex(12)
    return CompactionJob(
        id=number,
        operator=OPERATOR,
        format=file_format,
        inputs=inputs,
        output_prefix=f"data/000000000000/compaction-{number}/",
        range=GROUPS,
        now_us=time.time_ns() // 1000,
        target_bytes=64 << 20,
        options={"bottom": True, "number": number},
    )


def submission(job: CompactionJob) -> Submission:
    return Submission(job=job, storage="default", client=secrets.token_hex(4))


def done(gateway: Gateway, job: CompactionJob) -> None:
    """One job, from its submission until it is known to be done."""
    view = gateway.submit(submission(job), 10.0)
    while not view.phase.ended:
        view = gateway.poll(job.id, 10.0)
    if view.phase is not CompactionPhase.DONE:
        raise SystemExit(f"{view.phase}: {view.message}")
    gateway.release(job.id)


def round_trips(gateway: Gateway, count: int) -> list[float]:
    times = []
    for _ in range(count):
        job = job_of([], "nothing-1")
        began = time.perf_counter()
        view = gateway.submit(submission(job), 10.0)
        while not view.phase.ended:
            view = gateway.poll(job.id, 10.0)
        times.append(time.perf_counter() - began)
        gateway.release(job.id)
    return times


def jobs_per_second(address: str, count: int, threads: int) -> float:
    gateways = [Gateway(address, ClientSecurity(), timeout_s=10.0) for _ in range(4)]

    def one(number: int) -> None:
        done(gateways[number % len(gateways)], job_of([], "nothing-1"))

    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as crowd:
        list(crowd.map(one, range(count)))
    seconds = time.perf_counter() - began
    for gateway in gateways:
        gateway.close()
    return count / seconds


def runs_of(state_dir: str, name: str) -> list[StateFile]:
    """Sorted files of one operator, which overlap by half."""
    storage = open_storage(state_dir, {}).child(OPERATOR)
    kinds = {"kind": "value", "key": "bytes", "value": "bytes", "user_key": None, "ttl": False}
    header = TableHeader("t", {"name": "t", **kinds}, ttl=False)
    generator = np.random.default_rng(7)
    files = []
    for run in range(RUNS):
        numbers = np.sort(generator.choice(2 * CELLS, CELLS, replace=False))
        addresses = (numbers % 128 << 48 | numbers).astype(np.uint64)
        keys = [b"k%012d" % n for n in numbers]
        values = [os.urandom(32) * 2 for _ in numbers]
        cells = Cells.of(addresses, Kind.PUT, keys, values).sorted()
        files.append(write_file(storage, f"data/{name}-{run}", [(header, [cells])], range=GROUPS))
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


def memory_of(pid: int) -> str:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines():
        if line.startswith("Pss:"):
            return f"{int(line.split()[1]) / 1024:.0f} MiB"
    return "unknown"


@click.command()
@click.option("--trips", default=500, show_default=True)
@click.option("--jobs", default=2000, show_default=True)
@click.option("--merges", default=3, show_default=True)
def main(trips: int, jobs: int, merges: int) -> None:
    """Measure, and print."""
    import ray

    with tempfile.TemporaryDirectory() as state_dir, connected("local", cpus=2):
        limits = GatewayLimits(queue=1000, jobs_per_client=1000)
        storages = {"default": StoragePlace(state_dir)}
        spec = GatewaySpec(host="127.0.0.1", port=0, workers=2, storages=storages, limits=limits)
        actor, address = start_gateway(spec, name="benchmark", detached=False)
        gateway = Gateway(address, ClientSecurity(), timeout_s=10.0)
        while gateway.hello()["workers"] < 2:
            time.sleep(0.1)
        print(f"gateway idle: {memory_of(ray.get(actor.pid.remote()))} PSS")
        round_trips(gateway, 50)
        times = sorted(round_trips(gateway, trips))
        p50, p95 = statistics.median(times), times[int(len(times) * 0.95)]
        print(f"empty job, there and back: p50 {p50 * 1e3:.2f} ms, p95 {p95 * 1e3:.2f} ms")
        for threads in (4, 16):
            rate = jobs_per_second(address, jobs, threads)
            print(f"empty jobs, {threads} threads: {rate:.0f} jobs/s")
        print(f"gateway after that: {memory_of(ray.get(actor.pid.remote()))} PSS")
        inputs = runs_of(state_dir, "runs")
        size = sum(file.size for file in inputs) / 2**20
        here = min(merged_here(state_dir, inputs) for _ in range(merges))
        print(f"merge of {size:.0f} MiB here: {here:.2f} s")
        one = merged_there(gateway, inputs, 1, merges) / merges
        print(f"the same by one worker: {one:.2f} s, {here / one:.2f} of the speed")
        two = merged_there(gateway, inputs, 2, merges) / merges / 2
        print(f"the same by two workers: {two:.2f} s a merge, {one / two:.2f} times one worker")
        gateway.close()


if __name__ == "__main__":
    main()
