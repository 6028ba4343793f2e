"""Whatever befalls the service, the state is that of an undisturbed query, and no file stays.

The real engine, the lsm backend, the version protocol, gRPC, a gateway and workers; the test drives
micro-batches, the clock of storage, and the troubles.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import uuid
from datetime import timedelta

import pytest
from compaction_ray_toys import (
    PATIENCE_S,
    Concatenation,
    RunningGateway,
    ThreadPool,
    ThreadWorker,
)

from forebay_backend_lsm.backend import LsmBackend
from forebay_backend_lsm.compactor import LsmCompactor
from forebay_compaction_ray.client import gateway as client_side
from forebay_compaction_ray.client.service import RemoteCompactionService
from forebay_compaction_ray.gateway import server as gateway_side
from forebay_compaction_ray.gateway.limits import GatewayLimits
from forebay_compaction_ray.gateway.pool import WorkerLostError
from forebay_compaction_ray.gateway.server import ServerSecurity
from forebay_compaction_ray.options import ClientSecurity, RemoteOptions
from forebay_compaction_ray.wire import pack
from forebay_state_api.compaction import CompactionPhase
from forebay_state_api.descriptors import ListStateDescriptor, ValueStateDescriptor
from forebay_state_api.errors import CorruptStateError, PluginError, StorageError
from forebay_state_api.storage import open_storage
from forebay_state_api.testing import ClockedStorage, KeyedJob, ManualClock
from forebay_state_api.versions.epochs import list_epochs
from forebay_state_api.versions.janitor import Janitor
from forebay_state_api.versions.layout import data_version
from forebay_state_api.versions.manifest import is_named
from forebay_state_api.versions.reader import open_version

VALUE = ValueStateDescriptor("v", int)
LIST = ListStateDescriptor("l", int)
KEYS = [f"k{number}" for number in range(8)]
HOUR = timedelta(hours=1)
RETENTION = 2
BATCHES = 30


class TroubledCompactor(LsmCompactor):
    """Fails in passing as often as it is told to, and waits while it is held."""

    def __init__(self):
        super().__init__()
        self.failures = 0
        self.go = threading.Event()
        self.go.set()

    def compact(self, job, storage, cancelled):
        while not self.go.wait(0.005):
            if cancelled():
                return None
        if self.failures:
            self.failures -= 1
            raise StorageError("throttled", transient=True)
        return super().compact(job, storage, cancelled)


class TroubledWorker(ThreadWorker):
    """Is declared dead as often as it is told to; what it was given then is kept for later.

    Of what it leaves, something else becomes as often as `damages` says how.
    """

    async def run(self, given):
        if self._body.deaths:
            self._body.deaths -= 1
            self._body.zombies.append(given)
            raise WorkerLostError("its node does not answer")
        outcome = await super().run(given)
        if self._body.damages and outcome.phase is CompactionPhase.DONE:
            self._damage(given, self._body.damages.pop())
        return outcome

    def _damage(self, given, damage):
        here = self._body.root.child(given.job.operator)
        data = here.get(given.job.result_name)
        here.delete([given.job.result_name])
        here.put(given.job.result_name, damage(data))


class TroubledPool(ThreadPool):
    worker_class = TroubledWorker

    def start(self, worker_id):
        worker = super().start(worker_id)
        worker._body.deaths = 0
        worker._body.zombies = []
        worker._body.damages = []
        worker._body.root = self._storages["default"]
        return worker


class Query:
    """One query, its service, and what its state must be."""

    def __init__(self, **options):
        self.clock = ManualClock()
        self.root = ClockedStorage(open_storage(f"memory://{uuid.uuid4()}"), self.clock)
        self.compactor = TroubledCompactor()
        self.pool = TroubledPool({"default": self.root}, {LsmCompactor.format: self.compactor})
        self.gateway = self.serve()
        self.model = {key: (None, []) for key in KEYS}
        self.ended = []
        self.client = None
        self.stack = contextlib.ExitStack()
        self.job = KeyedJob(
            LsmBackend,
            self.root,
            descriptors=[VALUE, LIST],
            options={"max-runs": 16, "job-timeout": 600.0},
            clock=self.clock,
        )
        self.new_process(**options)
        self.storage = self.job.storage

    def serve(self, port=0, security=None, **limits):
        given = GatewayLimits(ping_every_s=0.05, **limits)
        return RunningGateway(
            self.pool, storages=["default"], limits=given, security=security, port=port
        )

    @property
    def body(self):
        return self.pool.bodies[-1]

    def new_process(self, address=None, **options):
        """The process ends, as those of Spark do, and another one goes on."""
        self.end_process()
        given = {"connect_timeout_s": 5.0, "min_bytes": 0, "queue_timeout_s": 0.5, **options}
        given["addresses"] = (address or self.gateway.address,)
        self.client = RemoteCompactionService(
            self.root, RemoteOptions(**given), find_compactor=lambda _: LsmCompactor()
        )
        self.job.compaction = self.client

    def end_process(self):
        if self.client is not None:
            self.client.close()
            self.ended.append(self.client)
            self.client = None

    def new_gateway(self, **given):
        port = int(self.gateway.address.rpartition(":")[2])
        self.gateway.close()
        self.gateway = self.serve(port, **given)

    def batch(self, *, minutes=1, wait=True):
        """A micro-batch, and then the end of the compactions under way."""
        self.clock.advance(timedelta(minutes=minutes))
        number = self.job.batch_id
        calls, after = [], dict(self.model)
        for key in KEYS[number % 3 :: 2]:
            _, elements = self.model[key]
            if number % 5 == 4:
                calls.append((key, [("v.clear",), ("l.clear",)]))
                after[key] = (None, [])
            else:
                calls.append((key, [("v.update", number), ("l.add", number)]))
                after[key] = (number, [*elements, number])
        self.job.scripts(calls)
        self.model = after
        if wait:
            self.settle()

    def settle(self):
        for job_id in list(self.client._jobs):
            self.client.poll(job_id, PATIENCE_S)

    def until_taken(self):
        """Wait until a gateway has each job, or none wants it."""
        for tracked in list(self.client._jobs.values()):
            while not (tracked.address or tracked.local or tracked.status.phase.ended):
                tracked.wait(0.005)

    def check(self):
        """The state is what was written, and there is nothing beside what versions need."""
        found = self.job.scripts([(key, [("v.value",), ("l.get",)]) for key in KEYS])
        assert found == [[value, elements] for value, elements in self.model.values()]
        self.settle()
        needed, swept = set(), None
        for _ in range(3):
            self.clock.advance(3 * HOUR)
            swept = self.sweep()
        for version in range(swept.base, self.job.batch_id + 1):
            with open_version(self.storage, uid=self.job.uid, version=version) as reader:
                for manifest in reader.manifests:
                    needed |= manifest.names
        unneeded = [name for name in self.names() if not is_named(name, needed)]
        assert all((data_version(name) or 0) >= swept.base for name in unneeded)

    def sweep(self):
        run_key = list_epochs(self.storage).newest().run_key
        janitor = Janitor(self.storage, run_key=run_key, retention=RETENTION, min_age=HOUR)
        return janitor.sweep(self.job.batch_id)

    def names(self):
        return {info.name for info in self.storage.list("data")}

    def live(self):
        with open_version(self.storage, uid=self.job.uid) as reader:
            return {file.name for parent in reader.parents for file in parent.files}

    def count(self, name):
        clients = self.ended if self.client is None else [*self.ended, self.client]
        return sum(client.counters[name] for client in clients)

    def close(self):
        self.compactor.go.set()
        self.end_process()
        self.gateway.close()
        self.stack.close()


@pytest.fixture
def query():
    with contextlib.closing(Query()) as made:
        yield made


def dead_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@contextlib.contextmanager
def black_hole():
    """Accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def run(query):
    for _ in range(BATCHES):
        query.batch()


def test_undisturbed(query):
    run(query)
    query.check()
    assert query.count("done") > 1
    assert query.count("lost") == query.count("fallbacks") == 0
    assert any("/compaction-" in name for name in query.live())


def nothing_waits(query, number):
    """Batches follow each other while compactions are under way."""
    query.batch(wait=False)


def no_gateway(query, number):
    if number == 3:
        query.new_process(dead_address())
    query.batch()


def gateway_begins_again(query, number):
    query.batch(wait=False)
    if number % 4 == 3:
        query.new_gateway()


def process_ends(query, number):
    """Before its jobs were sent, or after; another one asks the gateway for those that were."""
    query.batch(wait=False)
    if number % 4:
        query.until_taken()
    query.new_process()


def process_ends_and_gateway_begins_again(query, number):
    query.batch(wait=False, minutes=5)
    if number % 5 == 4:
        query.end_process()
        query.new_gateway()
        query.new_process()


def workers_die(query, number):
    query.body.deaths += number % 6 == 2
    query.batch()


def workers_die_all_the_time(query, number):
    query.body.deaths = 1
    query.batch()


def storage_fails_in_passing(query, number):
    query.compactor.failures = number % 5
    query.batch()


def gateway_drains(query, number):
    if number == 5:
        query.gateway.on_loop(query.gateway.core.drain)
    query.batch()


def workers_are_taken_away_and_come_back(query, number):
    query.gateway.on_loop(lambda: query.gateway.core.scale(number % 3))
    query.batch()


def an_hour_between_batches(query, number):
    query.batch(minutes=70)


def gateway_accepts_and_never_answers(query, number):
    if number == 4:
        query.new_process(query.stack.enter_context(black_hole()), connect_timeout_s=0.05)
    query.batch()


def queue_is_full(query, number):
    if number in (4, 20):
        query.new_gateway(queue=0 if number == 4 else 8)
    query.batch()
    assert number != 19 or query.count("fallbacks") > 0


def jobs_run_out_of_time(query, number):
    """They are aborted at the gateway, tried again, and then done here."""
    if number == 4:
        query.compactor.go.clear()
        query.new_process(request_timeout_s=0.1, request_retries=1)
    query.batch()


def results_are_torn(query, number):
    """What is there of them cannot be decoded; none of them counts."""
    if number % 3 == 0:
        query.body.damages = [lambda data: data[:-1]]
    query.batch()
    assert number != BATCHES - 1 or query.count("lost") > 0


def gateway_is_newer_and_understands(query, number):
    if number == 0:
        speak(query, gateway_side, v=9, min_v=1, news="of a later release")
    query.batch()
    assert number != BATCHES - 1 or query.count("done") > 1


def speak(query, side, **versions):
    """Let one side be of another release, as far as the other one can see."""
    patch = query.stack.enter_context(pytest.MonkeyPatch.context())
    patch.setattr(side, "pack", lambda message: pack({**message, **versions}))


@pytest.mark.parametrize(
    "trouble",
    [
        nothing_waits,
        no_gateway,
        gateway_begins_again,
        process_ends,
        process_ends_and_gateway_begins_again,
        workers_die,
        workers_die_all_the_time,
        storage_fails_in_passing,
        gateway_drains,
        workers_are_taken_away_and_come_back,
        an_hour_between_batches,
        gateway_accepts_and_never_answers,
        queue_is_full,
        jobs_run_out_of_time,
        results_are_torn,
        gateway_is_newer_and_understands,
    ],
    ids=lambda trouble: trouble.__name__,
)
def test_the_state_is_that_of_an_undisturbed_query(query, trouble):
    for number in range(BATCHES):
        trouble(query, number)
    query.settle()
    query.batch()
    query.check()
    assert any("/compaction-" in name for name in query.live()), "nothing was compacted"


def test_a_worker_that_always_dies_leads_to_compaction_in_the_job(query):
    for _ in range(BATCHES):
        query.body.deaths = 1
        query.batch()
    assert query.count("fallbacks") > 0
    assert query.gateway.core.metrics.value("jobs_finished_total", outcome="done") == 0
    query.check()


def test_a_zombie_that_finishes_late_never_goes_live(query):
    query.body.deaths = 1
    while not query.body.zombies:
        query.batch()
    (zombie,) = query.body.zombies
    while query.count("done") < 1:
        query.batch()
    query.batch()
    assert any("/compaction-" in name for name in query.live())
    assert query.body.run(zombie).phase is CompactionPhase.DONE
    assert zombie.job.result_name in query.names()
    for _ in range(RETENTION + 6):
        query.batch()
        assert not [name for name in query.live() if name.startswith(zombie.job.output_prefix)]
    query.check()
    assert not [name for name in query.names() if name.startswith(zombie.job.output_prefix)]


def test_the_query_stops_if_it_is_told_to_and_goes_on_when_a_gateway_is_back():
    with contextlib.closing(Query(fall_back=False, request_retries=0)) as query:
        for _ in range(8):
            query.batch()
        query.new_process(dead_address(), fall_back=False, request_retries=0)
        with pytest.raises(StorageError, match="failure-strategy is 'fail'"):
            run(query)
        for _ in range(4):  # Spark's retries
            with pytest.raises(StorageError, match="UNAVAILABLE"):
                query.batch()
        query.new_process(fall_back=False, request_retries=0)
        done = query.count("done")
        run(query)
        query.check()
        assert query.count("done") > done
        assert query.count("fallbacks") == 0


def test_zombies_of_work_that_was_done_here_never_go_live(query):
    """Every attempt is given up, the job compacts by itself, and then they all finish."""
    while not query.count("fallbacks"):
        query.body.deaths = 1
        query.batch()
    query.body.deaths = 0
    zombies = query.body.zombies
    assert len(zombies) > 1
    query.batch()
    live = query.live()
    assert any("/compaction-" in name for name in live)
    for zombie in zombies:
        assert query.body.run(zombie).phase is CompactionPhase.DONE
        assert zombie.job.result_name in query.names()
    prefixes = tuple(zombie.job.output_prefix for zombie in zombies)
    for _ in range(RETENTION + 6):
        assert not [name for name in query.live() if name.startswith(prefixes)]
        query.batch()
    query.check()
    assert not [name for name in query.names() if name.startswith(prefixes)]


def wrong_token(query):
    query.new_gateway(security=ServerSecurity(token="right"))
    query.new_process(security=ClientSecurity(token="wrong"))
    yield "token is missing or wrong"
    query.new_process(security=ClientSecurity(token="right"))


def unknown_format(query):
    """No worker has the backend's plugin."""
    query.pool._compactors = {"toy": Concatenation()}
    query.new_gateway()
    yield "no worker has a compactor"
    query.pool._compactors = {LsmCompactor.format: query.compactor}
    query.new_gateway()
    query.new_process()


def unknown_storage(query):
    query.new_process(storage="elsewhere")
    yield "has no storage 'elsewhere'"
    query.new_process()


def gateway_too_new(query):
    yield from of_another_release(query, gateway_side, 9)


def gateway_too_old(query):
    yield from of_another_release(query, gateway_side, 0)


def job_too_new(query):
    yield from of_another_release(query, client_side, 9)


def job_too_old(query):
    yield from of_another_release(query, client_side, 0)


def of_another_release(query, side, version):
    speak(query, side, v=version, min_v=version)
    yield "upgrade the older side"
    query.stack.close()
    query.new_process()


@pytest.mark.parametrize(
    "trouble",
    [
        wrong_token,
        unknown_format,
        unknown_storage,
        gateway_too_new,
        gateway_too_old,
        job_too_new,
        job_too_old,
    ],
    ids=lambda trouble: trouble.__name__,
)
def test_what_somebody_must_mend_stops_the_query_until_it_is_mended(query, trouble):
    for _ in range(6):
        query.batch()
    steps = trouble(query)
    why = next(steps)
    with pytest.raises(PluginError, match=why):
        run(query)
    for _ in range(3):  # Spark's retries
        with pytest.raises(PluginError, match=why):
            query.batch()
    done = query.count("done")
    assert next(steps, None) is None
    run(query)
    query.check()
    assert query.count("done") > done
    assert query.count("fallbacks") == 0


def test_an_altered_result_stops_the_query_until_it_is_deleted(query):
    """Nothing of it is installed; what it was made of is still there, and is compacted again."""
    for _ in range(4):
        query.batch()
    query.body.damages = [lambda data: data[:-1] + bytes([data[-1] ^ 0xFF])]
    with pytest.raises(CorruptStateError, match="result"):
        run(query)
    jobs = [tracked.job for tracked in query.client._jobs.values() if tracked.job is not None]
    altered = [job for job in jobs if job.result_name in query.names()]
    with pytest.raises(CorruptStateError, match="result"):
        query.batch()
    query.storage.delete([altered[-1].result_name])
    query.new_process()
    done = query.count("done")
    run(query)
    query.check()
    assert query.count("done") > done
    assert not [name for name in query.names() if name.startswith(altered[-1].output_prefix)]


@pytest.mark.parametrize("damage", ["missing", "altered"])
def test_a_damaged_input_stops_the_query(query, damage):
    query.new_process(queue_timeout_s=PATIENCE_S)
    while query.count("submitted") < 1:
        query.gateway.on_loop(lambda: query.gateway.core.scale(0))
        query.batch(wait=False)
    (tracked,) = [t for t in query.client._jobs.values() if t.job is not None]
    name = tracked.job.inputs[0].name
    data = bytearray(query.storage.get(name))
    query.storage.delete([name])
    if damage == "altered":
        data[len(data) // 2] ^= 0xFF
        query.storage.put(name, bytes(data))
    query.gateway.on_loop(lambda: query.gateway.core.scale(1))
    query.settle()
    assert tracked.status.phase is CompactionPhase.FAILED
    with pytest.raises(CorruptStateError, match=name.rpartition("/")[2]):
        query.batch()
    assert query.count("fallbacks") == 0


def test_a_result_of_a_run_that_went_back_is_ignored(query):
    """The query is started again from an older version; what was submitted later is nobody's."""
    query.new_process(queue_timeout_s=PATIENCE_S)
    for _ in range(3):
        query.batch()
    model, batch_id = dict(query.model), query.job.batch_id
    query.gateway.on_loop(lambda: query.gateway.core.scale(0))
    submitted = query.count("submitted")
    while query.count("submitted") == submitted:
        query.batch(wait=False)
    late = [t.job for t in query.client._jobs.values() if t.job is not None][-1]
    query.job.restart(batch_id=batch_id)
    query.model = model
    query.new_process()
    query.gateway.on_loop(lambda: query.gateway.core.scale(1))
    run(query)
    assert not [name for name in query.live() if name.startswith(late.output_prefix)]
    query.check()
