"""Test doubles: a core over scripted workers, a gateway over threads, toy files."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import math
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from typing import ClassVar

from forebay_compaction_ray.credentials import Credentials
from forebay_compaction_ray.gateway.core import GatewayCore
from forebay_compaction_ray.gateway.limits import GatewayLimits
from forebay_compaction_ray.gateway.metrics import GATEWAY
from forebay_compaction_ray.gateway.server import GatewayServer
from forebay_compaction_ray.gateway.storages import GatewayStorages
from forebay_compaction_ray.gateway.worker_handle import WorkerLostError
from forebay_compaction_ray.messages import JobProgress, Outcome, Submission, WorkerInfo
from forebay_compaction_ray.worker.body import WorkerBody, WorkerStorage
from forebay_state_api.contract.checksummed import unseal
from forebay_state_api.contract.compaction_job import CompactionJob, CompactionResult
from forebay_state_api.contract.compaction_service import CompactionPhase
from forebay_state_api.contract.files import StateFile
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import CorruptStateError
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.storage.opening import open_storage

ALL = KeyGroupRange(0, 127)
PATIENCE_S = 100.0
QUICK = GatewayLimits(ping_every_s=0.05, stall_timeout_s=5.0)


def job(number=1, *, file_format="toy", inputs=(), attempt=1, lease_s=600.0, now_us=1, size=100):
    """Make a job, whose work is unique to ``number``."""
    meta = {"entries": 1, "sum": 100 * number}
    return CompactionJob(
        id=secrets.token_hex(12),
        operator="query/op",
        format=file_format,
        inputs=list(inputs)
        or [StateFile(name=f"data/in{number}", size=size, range=ALL, meta=meta)],
        output_prefix=f"data/000000000000/compaction-{secrets.token_hex(12)}/",
        range=ALL,
        now_us=now_us,
        target_bytes=1 << 20,
        lease_s=lease_s,
        attempt=attempt,
        options={"number": number},
    )


def submission(number=1, *, storage="default", **of_job):
    return Submission(job=job(number, **of_job), storage=storage)


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Hurried(Clock):
    """A clock by which every step takes a second."""

    def __call__(self):
        self.now += 1.0
        return self.now


class ScriptedWorker:
    """Does nothing by itself: the test decides how its jobs end, and whether it answers.

    Killed, it lives on if `dies_at_once` is false, as a process that Ray cannot reach.
    """

    def __init__(self, worker_id, formats=("toy",), *, up=True):
        self.id = worker_id
        self.formats = formats
        self.dead = False
        self.up = up
        self.answers = True
        self.aborts_at_once = True
        self.dies_at_once = True
        self.killed = False
        self.running: dict[str, asyncio.Future] = {}
        self.ran: list[str] = []
        self.aborted: list[str] = []
        self.progress: dict[str, JobProgress] = {}
        self.steps = itertools.count(1)
        self.marks = {"default": "mark"}
        self.node = "n"
        self.fault: Exception | None = None

    async def _until(self, right: Callable[[], bool]):
        while not (right() or self.dead):  # noqa: ASYNC110 - the test drives the loop
            await asyncio.sleep(0)
        if self.dead:
            raise WorkerLostError("it is dead")

    async def describe(self, marks):
        await self._until(lambda: self.up and self.answers)
        if self.fault is not None:
            raise self.fault
        return WorkerInfo(
            boot=f"boot of {self.id}",
            pid=1,
            node=self.node,
            version="1",
            formats=self.formats,
            problems={n: "not mounted" for n, mark in marks.items() if self.marks.get(n) != mark},
        )

    async def run(self, given):
        await self._until(lambda: True)
        self.ran.append(given.job.id)
        future = self.running[given.job.id] = asyncio.get_running_loop().create_future()
        return await future

    async def ping(self):
        await self._until(lambda: self.answers)
        moves = JobProgress(bytes_in=0, steps=next(self.steps))
        return {job_id: self.progress.get(job_id, moves) for job_id in self.running}

    async def abort(self, job_id):
        self.aborted.append(job_id)
        if self.aborts_at_once and job_id in self.running:
            self.end(job_id, CompactionPhase.ABORTED)

    async def check(self, storage):
        return {"it is there": ""}

    def kill(self):
        self.killed = True
        if self.dies_at_once:
            self.die()

    def end(self, job_id, phase=CompactionPhase.DONE, fault=None, **reported):
        future = self.running.pop(job_id)
        if not future.done():
            future.set_result(Outcome(phase=phase, fault=fault, bytes_in=7, **reported))

    def die(self):
        self.dead = True
        running, self.running = self.running, {}
        for future in running.values():
            if not future.done():
                future.set_exception(WorkerLostError("it died"))


class ScriptedPool:
    worker_class = ScriptedWorker

    def __init__(self, **of_workers):
        self.workers: list[ScriptedWorker] = []
        self.of_workers = of_workers

    def start(self):
        self.workers.append(self.worker_class(f"w{len(self.workers)}", **self.of_workers))
        return self.workers[-1]


class ScriptedStorages(GatewayStorages):
    """Storages without objects: each is marked "mark" unless a test makes a problem."""

    def __init__(self, *names):
        super().__init__({name: WorkerStorage(f"/{name}") for name in names})
        self.troubles = {}

    async def look(self):
        self.problems.clear()
        self.problems.update(self.troubles)
        names = [name for name in self.names if name not in self.troubles]
        self.marks.clear()
        self.marks.update(dict.fromkeys(names, "mark"))


def counted(core, key, **labels):
    """Return a number of a gateway; 0 if it has not been counted."""
    metric = {metric.key: metric for metric in GATEWAY}[key]
    return core.metrics.registry.get_sample_value(metric.name, labels) or 0


async def settle():
    """Let all tasks that are ready run."""
    for _ in range(20):
        await asyncio.sleep(0)


LIMITS = GatewayLimits(queue=3, inputs=4, job_bytes=10_000, ping_every_s=1.0)
_stages: list[Stage] = []


class Stage:
    """A core over scripted workers; `in_loop` closes all cores that a test made."""

    def __init__(self, *, limits=LIMITS, formats=("toy",), **of_core):
        self.pool = ScriptedPool(formats=formats)
        self.storages = ScriptedStorages("default")
        self.core = GatewayCore(self.pool.start, limits, storages=self.storages, **of_core)
        _stages.append(self)

    async def up(self, workers=1):
        self.core.worker_set.scale(workers)
        await settle()
        return self.pool.workers

    async def later(self, seconds):
        """Let time pass in ticks, as a gateway does."""
        for _ in range(math.ceil(seconds / LIMITS.ping_every_s)):
            self.core.tick()
            await settle()

    async def submit(self, number=1, **given):
        view = self.core.submit(submission(number, **given))
        await settle()
        return view.job_id

    def abort(self, job_id):
        """Do with one job what an overlong drain does with all."""
        self.core._abort(self.core._jobs[job_id], "drain")

    async def phase(self, job_id):
        return (await self.core.poll(job_id)).phase


def in_loop(test):
    """Run a test in its own event loop."""

    async def closing(given):
        try:
            await test(**given)
        finally:
            while _stages:
                await _stages.pop().core.close()

    @functools.wraps(test)
    def run(**given):
        asyncio.run(closing(given))

    return run


class Concatenation:
    """Joins its inputs into one file; can be delayed, and made to fail."""

    format: ClassVar[str] = "toy"
    contract_version: ClassVar[int] = 2

    def __init__(self):
        self.go = threading.Event()
        self.go.set()
        self.began = threading.Event()
        self.fault: Exception | None = None
        self.damage = False
        self.runs = 0
        self.threads: list[str] = []
        self.verified: list[str] = []

    def compact(self, job, storage, cancelled) -> CompactionResult | None:
        self.runs += 1
        self.threads.append(threading.current_thread().name)
        self.began.set()
        while not self.go.wait(0.005):
            if cancelled():
                return None
        if cancelled():
            return None
        if self.fault is not None:
            raise self.fault
        data = b"".join(storage.get(file.name) for file in job.inputs)
        meta = {"entries": len(job.inputs), "sum": sum(data)}
        name = f"{job.output_prefix}0000"
        output = StateFile(name=name, size=len(data), range=ALL, meta=meta)
        storage.put_if_absent(name, data[::-1] if not self.damage else b"?" * len(data))
        count = len(job.inputs)
        return CompactionResult(
            outputs=[output], entries_in=count, entries_out=count, entries_dropped=0
        )

    def verify(self, file: StateFile, storage: ObjectStorage) -> None:
        self.verified.append(file.name)
        if sum(storage.get(file.name)) != file.meta["sum"]:
            raise CorruptStateError(f"{file.name} is damaged")


class ThreadWorker:
    """A worker whose `WorkerBody` runs on threads of this process."""

    def __init__(self, body: WorkerBody):
        self._body = body

    async def describe(self, marks):
        return await asyncio.to_thread(self._body.describe, marks)

    async def run(self, given):
        return await asyncio.to_thread(self._body.run, given)

    async def ping(self):
        return self._body.ping()

    async def abort(self, job_id):
        self._body.abort(job_id)

    async def check(self, storage):
        return await asyncio.to_thread(self._body.check, storage)

    def kill(self):
        for job_id in self._body.ping():
            self._body.abort(job_id)


class ThreadPool:
    """Workers in this process; ``storages`` are URLs, or open storages."""

    worker_class = ThreadWorker

    def __init__(self, storages, compactors):
        self._storages = storages
        self._compactors = compactors
        self.bodies: list[WorkerBody] = []

    def start(self):
        places = {name: WorkerStorage(name) for name in self._storages}
        body = WorkerBody(places, compactors=lambda: self._compactors, open_=self.open)
        self.bodies.append(body)
        return self.worker_class(body)

    def open(self, name, options):
        found = self._storages[name]
        return open_storage(found, options) if isinstance(found, str) else found


class RunningGateway:
    """A gateway on a thread of this process: real gRPC, workers on threads."""

    def __init__(self, pool, *, storages, limits=None, security=None, workers=1, port=0):
        self.limits = limits or GatewayLimits(ping_every_s=0.05)
        self.security = security or Credentials()
        self.pool, self._storages, self._workers, self._port = pool, storages, workers, port
        self._up = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._up.wait(PATIENCE_S)

    def _run(self):
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self):
        self._end = asyncio.Event()
        places = {name: WorkerStorage(name) for name in self._storages}
        storages = GatewayStorages(places, self.pool.open)
        self.core = GatewayCore(self.pool.start, self.limits, storages=storages)
        self.server = GatewayServer(self.core, lambda: self.security)
        self.core.worker_set.scale(self._workers)
        self.address = await self.server.start("127.0.0.1", self._port)
        self.core.tick()
        while any(w.describing for w in self.core.worker_set.workers.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        self._up.set()
        while not self._end.is_set():
            with contextlib.suppress(TimeoutError):  # the next tick is due
                await asyncio.wait_for(self._end.wait(), self.limits.ping_every_s)
            self.core.tick()
        await self.server.close(0)
        await self.core.close()

    def on_loop(self, what: Callable[[], object]):
        """Run a function on the core's loop."""
        done, found = threading.Event(), []

        def do():
            found.append(what())
            done.set()

        self._loop.call_soon_threadsafe(do)
        assert done.wait(PATIENCE_S)
        return found[0]

    def close(self):
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(PATIENCE_S)


@contextlib.contextmanager
def running(pool, **given) -> Iterator[RunningGateway]:
    gateway = RunningGateway(pool, **given)
    try:
        yield gateway
    finally:
        gateway.close()


def ended(client, given):
    client.submit(given)
    return client.poll(given.id, PATIENCE_S)


def happened(client, event):
    """Return how often an event of a client has happened, for any cause."""
    return sum(n for name, n in client.counters.all().items() if name.partition(":")[0] == event)


def begun(client, remote):
    """Start a job that runs and waits for ``remote.go``."""
    remote.go.clear()
    given = job()
    client.submit(given)
    assert remote.began.wait(PATIENCE_S)
    return given


def result_of(storage, given):
    here = storage.child(given.operator)
    return CompactionResult.from_plain(unseal(here.get(given.result_name)))


def dead_address():
    """Return an address that refuses connections; nobody else gets it while this process lives."""
    probe = socket.socket()
    probe.bind(("127.0.0.1", 0))  # and does not listen
    _BOUND.append(probe)
    return f"127.0.0.1:{probe.getsockname()[1]}"


_BOUND = []


@contextlib.contextmanager
def black_hole():
    """Return the address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"
