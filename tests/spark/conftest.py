"""Fixtures for tests on Spark: an HTTP service on loopback, jobs under Spark Connect, and
drivers and workers that are killed."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException

from forebay_engine.versions.format.markers import list_version
from forebay_spark_runtime import current_call
from forebay_spark_runtime.demo.kill import end, unfinished, workers
from forebay_state_api.storage.opening import open_storage

JOBS = Path(__file__).parents[1] / "jobs"


class Service:
    """An HTTP server; ``/path/n`` answers ``path:n``, unless `trouble` has the row."""

    def __init__(self, web):
        """Take the module ``aiohttp.web``, which some environments lack."""
        self.calls = []
        """(path, row, idempotency key) of each request."""
        self.trouble = {}
        """Row → the statuses to answer first."""
        self.delay_s = lambda row: 0.002 * (row % 4)
        """A function from a row to the seconds that its answer takes."""
        self.port = None
        self._web = web
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(100)

    def url(self, path="a"):
        """Return the URL to which a slash and the number of a row are appended."""
        return f"http://127.0.0.1:{self.port}/{path}"

    def ask(self, path="a"):
        """Return a function for ordered waits that calls this service."""
        url = self.url(path)

        async def ask(row, client):
            headers = {"Idempotency-Key": current_call().key}
            async with client.get(f"{url}/{row.id}", headers=headers) as response:
                response.raise_for_status()
                return await response.text()

        return ask

    @staticmethod
    def answers(ids, path="a"):
        """Return the rows that an ordered wait makes of ``ids``."""
        return [(n, f"{path}:{n}") for n in ids]

    def close(self):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(100)

    async def _answer(self, request):
        path, row = request.match_info["path"], int(request.match_info["row"])
        self.calls.append((path, row, request.headers.get("Idempotency-Key")))
        if self.trouble.get(row):
            headers = {"Retry-After": "0"}
            return self._web.Response(status=self.trouble[row].pop(0), headers=headers)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.delay_s(row)):
                await self._closing.wait()
        return self._web.Response(text=f"{path}:{row}")

    async def _serve(self):
        app = self._web.Application()
        app.router.add_get("/{path}/{row}", self._answer)
        self._runner = self._web.AppRunner(app)
        await self._runner.setup()
        site = self._web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]
        self._ready.set()

    def _run(self):
        self._loop.run_until_complete(self._serve())
        self._loop.run_forever()
        self._closing.set()  # callers that were killed wait for no answer
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()


@pytest.fixture
def http_service():
    web = pytest.importorskip("aiohttp.web", reason="the service needs aiohttp")
    # The function of `Service.ask` is sent to workers, which cannot import this module.
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    service = Service(web)
    yield service
    service.close()
    cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture
def one_partition(spark):
    """Spark's own state in one store, each of which takes time in every batch."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", before)


class ConnectServer:
    """Spark Connect in the JVM of the tests, and a client process that runs scenarios on it."""

    token = "token of the tests"

    def __init__(self, spark, folder):
        self.folder = folder
        self._log = folder / "log"
        self._options = spark._jvm.scala.Option
        context = spark._jsc.sc()
        for name, value in (
            ("grpc.binding.address", "127.0.0.1"),
            ("grpc.binding.port", "0"),
            ("authenticate.token", self.token),
        ):
            context.conf().set(f"spark.connect.{name}", value)
        service = getattr(spark._jvm.org.apache.spark.sql.connect.service, "SparkConnectService$")
        self._service = getattr(service, "MODULE$")  # the object of Scala
        self._service.start(context)
        self.address = f"sc://localhost:{self._service.localPort()}"
        # Spark's own is in the working directory, where tables of an earlier run may be.
        spark.sql(f"ALTER DATABASE default SET LOCATION '{folder}/warehouse'")
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, str(JOBS / "connected.py"), str(folder)],
                env={**os.environ, **self.environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                text=True,
            )

    @property
    def environment(self):
        """The variables with which ``getOrCreate()`` of another process uses this server."""
        return {"SPARK_REMOTE": self.address, "SPARK_CONNECT_AUTHENTICATE_TOKEN": self.token}

    def results(self, group):
        """Run a group of scenarios; return their results."""
        self._process.stdin.write(f"{group}\n")
        self._process.stdin.flush()
        said = self._process.stdout.readline().strip()
        assert said == "done", self._log.read_text(errors="replace")[-8000:]
        return json.loads((self.folder / "found.json").read_text())

    def close(self):
        with self._process:  # closes its input, which ends it
            pass
        self._service.stop(self._options.empty(), self._options.empty())


@pytest.fixture(scope="session")
def connect_server(spark, tmp_path_factory):
    pytest.importorskip("grpc", reason="the extra [connect] brings it")
    server = ConnectServer(spark, tmp_path_factory.mktemp("connect"))
    yield server
    server.close()


class Driver:
    """A separate driver process with its JVM and workers, which runs ``tests/jobs/driver.py``."""

    def __init__(self, folder):
        self._log = folder / "driver.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(JOBS / "driver.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._answers = ThreadPoolExecutor(1)
        self._answer = None

    def start(self, asked):
        """Start a job; the previous one is done."""
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        self._answer = self._answers.submit(self._process.stdout.readline)

    @property
    def is_running(self):
        """Whether the job has not ended."""
        return not self._answer.done()

    def end(self):
        """Wait for the end of the job; return its error, or None."""
        answer = self._answer.result(180)
        assert answer, self.log
        return json.loads(answer)

    @property
    def is_killed(self):
        return self._process.poll() is not None

    def kill(self):
        """Kill all processes of the driver's own session at once."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self.close()

    def kill_python(self):
        """Kill the driver alone; its JVM ends by itself, meanwhile it goes on."""
        self._process.kill()
        self.close()

    def kill_jvm(self):
        """Kill the JVM alone, and then the driver, whose job has failed."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        send(map(int, children.read_text().split()), signal.SIGKILL)
        assert self.end() is not None
        self.kill()

    def close(self):
        with self._process:  # closes its input, which ends it
            self._answers.shutdown()

    @property
    def log(self):
        return self._log.read_text(errors="replace")


class Drivers:
    """Separate drivers, one at a time: one that was not killed runs the next job too."""

    def __init__(self, new_folder):
        self._new_folder = new_folder
        self._driver = None

    def start(self, **asked):
        if self._driver is None or self._driver.is_killed:
            self._driver = Driver(self._new_folder("driver"))
        self._driver.start(asked)
        return self._driver

    def close(self):
        if self._driver is not None and not self._driver.is_killed:
            self._driver.close()


@pytest.fixture(scope="session")
def drivers(tmp_path_factory):
    drivers = Drivers(tmp_path_factory.mktemp)
    yield drivers
    drivers.close()


@pytest.fixture
def drive(stage, drivers):
    """Return a function that starts a job of ``tests/jobs`` in a separate driver.

    A driver whose job has not ended with the test is killed.
    """
    started = []

    def start(*, job="counting", **options):
        started.append(drivers.start(job=job, folder=str(stage.folder), **options))
        return started[-1]

    yield start
    for driver in started:
        if driver.is_running:
            driver.kill()


@pytest.fixture
def job():
    """Imports a job of ``tests/jobs``, so that it runs in the session of the tests."""
    imported = []

    def take(name):
        spec = importlib.util.spec_from_file_location(f"forebay_job_{name}", JOBS / f"{name}.py")
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        cloudpickle.register_pickle_by_value(module)  # workers cannot import it
        imported.append(module)
        return module

    yield take
    for module in imported:
        cloudpickle.unregister_pickle_by_value(module)


def send(pids, number):
    """Send a signal to processes; one that has exited meanwhile is skipped."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Kills:
    """Kills an operator's processes with SIGKILL at random moments, and starts them again."""

    def __init__(self, stage, uid, chance):
        self._stage = stage
        self._uid = uid
        self._chance = chance

    def drivers(self, start, *, restarts, batches):
        """Kill the drivers that ``start(turn)`` returns, each while it makes some version.

        The last start is left to the test, whose session is another driver, already running.
        """
        for turn in range(restarts):
            driver = start(turn)
            target = self.versions_begun() + self._chance.randrange(1, 3)
            deadline = time.monotonic() + 120
            while self.versions_begun() < min(target, batches) and driver.is_running:
                assert time.monotonic() < deadline, driver.log
                time.sleep(0.01)
            time.sleep(self._chance.uniform(0, 0.4))
            driver.kill()

    @property
    def hold(self):
        """While this file exists, the function makes no progress in the last version."""
        return self._stage.folder / "hold"

    def workers(self, df, *, restarts, batches):
        """Kill all workers several times, each time within two versions; then run to the end.

        If all kills come too late, the last version is hit, since `hold` exists until then.
        """
        self.hold.touch()
        for turn in range(restarts):
            made = len(self._stage.manifests(self._uid)) if turn else 0
            target = min(made + self._chance.randrange(1, 3), batches) if turn else 1
            self.in_a_version(self._stage.start(df), range(target, batches + 1))
        self.hold.unlink()
        self._stage.run(df)

    def in_a_version(self, query, versions):
        """Kill all workers while one of these versions is being made, and await the failure."""
        try:
            assert self._kill_in_a_version(query, versions), f"it ended: {query.exception()}"
            with pytest.raises(StreamingQueryException) as lost:
                query.awaitTermination()
            assert "FencedError" not in str(lost.value)
            assert "CorruptStateError" not in str(lost.value)
        finally:
            query.stop()

    def versions_begun(self):
        return len(list(self._stage.state.glob(f"*/{self._uid}/versions/*")))

    def _kill_in_a_version(self, query, versions):
        """Kill all workers at a random moment while one of these versions is being made.

        They are stopped first, so that no attempt is committed between a look and the kill. A stop
        that came too late is followed by a quicker one. Returns whether an attempt was lost.
        """
        dead = self._uncommitted(versions)
        longest_s = 0.1
        while query.isActive:
            if not self._uncommitted(versions) - dead:
                time.sleep(0.005)
                continue
            found = workers(self._stage.spark._jvm)
            time.sleep(self._chance.uniform(0, longest_s))
            send(found, signal.SIGSTOP)
            found = workers(self._stage.spark._jvm)  # with those that came in the meantime
            send(found, signal.SIGSTOP)
            if self._uncommitted(versions) - dead:
                end(found)
                return True
            send(found, signal.SIGCONT)
            longest_s /= 2
        return False

    def _uncommitted(self, versions):
        """Return the task attempts with a marker in one of these versions, but no manifest."""
        operator = self._stage.operators().get(self._uid)
        if operator is None:  # nothing has begun yet
            return set()
        storage = open_storage(operator)
        return set().union(*(unfinished(list_version(storage, version)) for version in versions))


@pytest.fixture
def chance(request):
    """Draws the moments of kills. A failure shows its seed, which FOREBAY_KILL_SEED sets."""
    seed = int(os.environ.get("FOREBAY_KILL_SEED") or int.from_bytes(os.urandom(4)))
    advice = f"FOREBAY_KILL_SEED={seed} draws the same moments of kills again"
    request.node.add_report_section("setup", "seed", advice)
    return random.Random(seed)


@pytest.fixture
def kills(stage, chance):
    """Return a function that makes the `Kills` of the operator with a uid."""
    return lambda uid: Kills(stage, uid, chance)
