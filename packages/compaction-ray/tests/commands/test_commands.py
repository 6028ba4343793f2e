"""``forebay compaction …`` against a gateway in this process."""

from __future__ import annotations

import contextlib
import io
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import attrs
import grpc
import pytest
from click.testing import CliRunner
from compaction_ray_toys import PATIENCE_S, Concatenation, ThreadPool, job, running
from rich.console import Console

from forebay_cli.main import main
from forebay_compaction_ray.client.gateway import UnreachableError
from forebay_compaction_ray.client.service import RemoteCompactionService
from forebay_compaction_ray.commands import inspection, start
from forebay_compaction_ray.credentials import Credentials
from forebay_compaction_ray.gateway.limits import GatewayLimits
from forebay_compaction_ray.options import RemoteOptions
from forebay_compaction_ray.worker.noop_compactor import NoopCompactor
from forebay_state_api.contract.compaction_service import CompactionFault, CompactionPhase
from forebay_state_api.errors import StorageError
from forebay_state_api.storage.opening import open_storage


def forebay(*arguments):
    return CliRunner().invoke(main, ["compaction", *arguments])


@pytest.fixture
def gateway(state_dir):
    compactors = {"toy": Concatenation(), "nothing-1": NoopCompactor()}
    with running(
        ThreadPool({"default": state_dir}, compactors),
        storages=["default"],
        limits=GatewayLimits(ping_every_s=0.05),
        security=Credentials(tokens=("secret",)),
    ) as started:
        yield started


@pytest.fixture
def there(gateway, tmp_path):
    (tmp_path / "token").write_text("secret\n")
    return ["--gateway", gateway.address, "--token-file", str(tmp_path / "token")]


def test_status(there, gateway):
    result = forebay("status", *there)
    assert result.exit_code == 0, result.output
    assert gateway.address in result.output
    assert "w0\tready\t" in result.output
    assert not [line for line in result.output.splitlines() if line != line.rstrip()]


def test_status_fits_a_narrow_terminal():
    workers = [
        {"id": "w10", "state": "draining", "node": "node-1.example", "pid": 1234567, "jobs": []}
        | {"done": 12345, "remaining": 5 << 40, "error": ""}
    ]
    now = {"state": "draining", "queue": 64, "running": 16, "worker_list": workers, "storages": {}}
    now["metrics"] = dict.fromkeys((inspection._READ, inspection._WRITTEN), 1023 << 30)
    before = {**now, "metrics": {inspection._READ: 0}}
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(inspection._shown("[fd00:1234:5678::9abc]:19461", now, before, 1.0))
    lines = console.export_text().splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["read", "worker", "w10"]
    assert lines[0].endswith("64 waiting, 16 running")
    assert lines[1].rstrip().endswith("1.1 TB/s")


def test_scale(there, gateway):
    assert forebay("scale", "3", *there).exit_code == 0
    assert len(gateway.core.worker_set.workers) == 3


def test_drain(there, gateway):
    result = forebay("drain", *there)
    assert "draining" in result.output
    assert gateway.core.hello().state == "draining"


def test_stop(there, gateway):
    assert forebay("stop", *there).exit_code == 0
    assert gateway.core.stopping.is_set()


def test_doctor(there, gateway):
    result = forebay("doctor", *there)
    assert result.exit_code == 0, result.output
    assert "a job comes back" in result.output
    assert "BAD" not in result.output
    gateway.on_loop(gateway.core.drain)
    result = forebay("doctor", *there)
    assert result.exit_code == 1
    assert "it is draining" in result.output
    assert "Traceback" not in result.output
    assert ", worker w0: put" in result.output, "storages are examined"


@pytest.mark.long
def test_doctor_probes_every_worker(there, gateway, state_dir, storage, monkeypatch):
    """One worker of three has another directory under the storage's name, one never comes up."""
    monkeypatch.setattr(inspection, "_START_S", 0.5)
    workers = gateway.core.worker_set
    other = ThreadPool({"default": f"{state_dir}-not-mounted"}, {"nothing-1": NoopCompactor()})

    async def describe(marks):
        raise ImportError("libfoo.so.1")

    def scale():
        start = workers._start
        workers._start = other.start
        gateway.core.worker_set.scale(2)
        workers._start = lambda: SimpleNamespace(describe=describe, kill=lambda: None)
        gateway.core.worker_set.scale(3)
        workers._start = start

    gateway.on_loop(scale)

    def are_known():
        return workers.workers["w1"].info.version and workers.workers["w2"].error

    while not gateway.on_loop(are_known):
        pass
    result = forebay("doctor", *there)
    assert result.exit_code == 1
    bad = [line for line in result.output.splitlines() if line.startswith("BAD")]
    assert "BAD  workers are up: 1 of 3 are" in bad
    assert len([line for line in bad if "worker w1" in line and "has no mark on" in line]) == 2
    (never,) = [line for line in bad if "worker w2" in line]
    assert never.endswith("it has not answered yet. it cannot start: libfoo.so.1")
    assert not [line for line in result.output.splitlines() if "ok" in line[:3] and "w2" in line]
    shown = forebay("status", *there).output
    assert "libfoo.so.1" in shown
    assert "has no mark on" in shown
    assert "unfit" in shown


@pytest.mark.long
def test_doctor_finds_a_worker_that_has_lost_its_mount(there, gateway, tmp_path, monkeypatch):
    monkeypatch.setattr(inspection, "_START_S", 0.0)
    gateway.on_loop(lambda: gateway.core.worker_set.scale(2))
    while gateway.on_loop(gateway.core.hello).workers < 2:
        pass
    empty = open_storage(str(tmp_path / "empty"))
    _, lost = gateway.pool.bodies
    mounted, lost._opened["default"] = lost._opened["default"], empty
    result = forebay("doctor", *there)
    assert result.exit_code == 1, result.output
    bad = [line for line in result.output.splitlines() if line.startswith("BAD")]
    assert "BAD  workers are up: 1 of 2 are" in bad
    assert [line for line in bad if "worker w1: it is the gateway's storage: " in line]
    lost._opened["default"] = mounted
    while gateway.on_loop(gateway.core.hello).workers < 2:
        pass
    assert forebay("doctor", *there).exit_code == 0


@pytest.mark.long
def test_doctor_finds_the_directory_that_the_gateway_has_lost(
    there, gateway, tmp_path, monkeypatch
):
    """The service goes on: its workers have it."""
    empty = open_storage(str(tmp_path / "empty"))
    monkeypatch.setattr(gateway.core.storages, "_open", lambda url, options: empty)
    result = forebay("doctor", *there)
    assert result.exit_code == 1, result.output
    (line,) = [line for line in result.output.splitlines() if line.startswith("BAD")]
    assert "the gateway has it: it has no mark on" in line


def test_doctor_names_the_storage_that_does_not_answer(there, gateway, monkeypatch):
    (body,) = gateway.pool.bodies
    wait = threading.Event()
    monkeypatch.setattr(body, "check", lambda storage: wait.wait(PATIENCE_S))
    gateway.core.limits = attrs.evolve(gateway.core.limits, check_s=0.05)
    result = forebay("doctor", *there)
    wait.set()
    assert result.exit_code == 1, result.output
    assert "worker w0: it answers: it did not answer within 0.05 s" in result.output


def test_status_goes_on_watching_when_the_gateway_is_away(gateway, monkeypatch):
    asked = []
    target = SimpleNamespace(address=gateway.address)
    described = gateway.on_loop(gateway.core.describe)

    def call(method, message):
        asked.append(method)
        if len(asked) == 2:
            raise UnreachableError("away", transient=True)
        if len(asked) == 4:
            raise KeyboardInterrupt
        return described

    target.call = call
    monkeypatch.setattr(inspection, "time", SimpleNamespace(sleep=lambda seconds: None))
    with pytest.raises(KeyboardInterrupt):
        inspection.show(target, watch=True, as_json=False)
    assert len(asked) == 4


def test_doctor_goes_on_when_something_is_refused(there, gateway, monkeypatch):
    monkeypatch.setattr(inspection, "_ROUND_TRIP_S", 0.05)
    gateway.on_loop(lambda: gateway.core.worker_set.scale(0))
    result = forebay("doctor", *there)
    assert result.exit_code == 1, result.output
    assert "BAD  workers are up: 0 of 0 are" in result.output
    assert "a job comes back: it is queued after 0.05 s" in result.output


class ScriptedDescriptions:
    """Answers `Describe` with one description after another, and repeats the last one."""

    def __init__(self, *workers_up, workers=2):
        listed = [{"state": "starting"}] * workers
        self.answers = [{"workers": up, "worker_list": listed} for up in workers_up]
        self.asked = 0

    def call(self, method, message):
        self.asked += 1
        return self.answers[min(self.asked, len(self.answers)) - 1]


@pytest.mark.parametrize(
    ("target", "up", "asked"),
    [
        (ScriptedDescriptions(2), 2, 1),
        (ScriptedDescriptions(0, 1, 2), 2, 3),
        (ScriptedDescriptions(0, workers=0), 0, 1),
        (ScriptedDescriptions(1), 1, 76),
    ],
    ids=["all up", "just begun", "to be none", "never"],
)
def test_doctor_waits_for_workers_that_come_up(monkeypatch, target, up, asked):
    now = [100.0]
    clock = SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + seconds)
    )
    monkeypatch.setattr(inspection, "time", clock)
    assert inspection._described(target)["workers"] == up
    assert target.asked == pytest.approx(asked, abs=1 if asked > 3 else 0)


def test_as_json(there, gateway):
    described = json.loads(forebay("status", *there, "--json").output)
    assert (described["address"], described["state"]) == (gateway.address, "serving")
    assert [worker["id"] for worker in described["worker_list"]] == ["w0"]
    scaled = json.loads(forebay("scale", "2", *there, "--json").output)
    assert len(scaled["worker_list"]) == 2
    found = json.loads(forebay("doctor", *there, "--json").output)
    assert "compactors are installed: nothing-1, toy" in {one["promise"] for one in found}
    assert {one["problem"] for one in found} == {""}
    both = forebay("status", *there, "--json", "--watch")
    assert (both.exit_code, "--watch cannot print JSON" in both.output) == (2, True)
    assert json.loads(forebay("stop", *there, "--json").output)["stops"] is True


@pytest.fixture
def settings_of_queries(state_dir, tmp_path, there):
    settings = {"state.dir": state_dir, "compaction.remote.token-file": there[-1]}
    return [part for key in settings for part in ("--conf", f"spark.forebay.{key}={settings[key]}")]


def test_endpoints_as_json(tmp_path, gateway, settings_of_queries):
    of = [*settings_of_queries, "--json"]
    added = forebay("endpoints", "add", gateway.address, *of)
    assert json.loads(added.output) == {"added": [gateway.address], "removed": []}
    assert json.loads(forebay("endpoints", "list", *of).output) == json.loads(added.output)
    missing = tmp_path / "nonexistent"
    of = ["--conf", f"spark.forebay.state.dir={missing}"]
    mistyped = forebay("endpoints", "add", "10.0.0.1:9461", *of)
    assert (mistyped.exit_code, "there is no directory" in mistyped.output) == (2, True)
    assert not missing.exists()


def test_nobody_there():
    result = forebay("status", "--gateway", "127.0.0.1:1")
    assert result.exit_code == 2
    assert "cannot be reached" in result.output


def test_the_wrong_token(gateway):
    result = forebay("status", "--gateway", gateway.address)
    assert result.exit_code == 2
    assert "token" in result.output


def test_endpoints(gateway, settings_of_queries):
    of = settings_of_queries
    assert "nothing" in forebay("endpoints", "list", *of).output
    assert (
        forebay("endpoints", "add", gateway.address, *of).output == f"added    {gateway.address}\n"
    )
    removed = forebay("endpoints", "remove", gateway.address, "10.0.0.2:1", *of)
    assert "added" not in removed.output
    listed = forebay("endpoints", "list", *of)
    assert sorted(listed.output.splitlines()) == sorted(
        [f"removed  {gateway.address}", "removed  10.0.0.2:1"]
    )


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"compaction.remote.token-file": "wrong"}, "the token is missing or wrong"),
        ({"compaction.remote.storage": "other"}, "has no storage 'other', only default"),
        ({"state.dir": "another"}, "these are two directories"),
    ],
)
def test_only_gateways_that_the_queries_can_use_are_added(
    gateway, settings_of_queries, tmp_path, changed, complaint
):
    (tmp_path / "wrong").write_text("wrong")
    (tmp_path / "another").mkdir()
    here = {"wrong": tmp_path / "wrong", "another": tmp_path / "another"}
    for key, value in changed.items():
        settings_of_queries += ["--conf", f"spark.forebay.{key}={here.get(value, value)}"]
    result = forebay("endpoints", "add", gateway.address, *settings_of_queries)
    assert result.exit_code == 2, result.output
    assert complaint in result.output.replace("\n", " ")
    assert "nothing was added" in forebay("endpoints", "list", *settings_of_queries).output


def test_a_gateway_without_workers_can_be_added(state_dir, storage):
    """It has looked at its storages before a worker is up."""
    pool = ThreadPool({"default": state_dir}, {})
    of = ["--conf", f"spark.forebay.state.dir={state_dir}"]
    with running(pool, storages=["default"], workers=0) as gateway:
        result = forebay("endpoints", "add", gateway.address, *of)
    assert result.output == f"added    {gateway.address}\n"


def test_a_gateway_that_cannot_read_its_storage_is_not_added(state_dir, storage):
    def refuse(url, options):
        raise StorageError("access denied")

    pool = ThreadPool({"default": state_dir}, {})
    pool.open = refuse
    of = ["--conf", f"spark.forebay.state.dir={state_dir}"]
    with running(pool, storages=["default"], workers=0) as gateway:
        result = forebay("endpoints", "add", gateway.address, *of)
    assert result.exit_code == 2
    told = "cannot use its storage 'default', default: the gateway cannot use it: access denied"
    assert told in result.output.replace("\n", " ")


def test_what_is_no_gateway_is_not_added(settings_of_queries):
    stranger = grpc.server(ThreadPoolExecutor(1))
    port = stranger.add_insecure_port("127.0.0.1:0")
    stranger.start()
    result = forebay("endpoints", "add", f"127.0.0.1:{port}", *settings_of_queries)
    stranger.stop(0).wait()
    assert result.exit_code == 2
    assert "is not a gateway of Forebay" in result.output


def test_endpoints_of_what():
    result = forebay("endpoints", "list")
    assert result.exit_code == 2
    assert "state.dir" in result.output


@pytest.mark.long
def test_an_open_door_is_refused_before_anything_starts(tmp_path):
    pytest.importorskip("ray", reason="the extra [server] brings it")
    result = forebay("start", "--host", "0.0.0.0", "--storage", str(tmp_path))
    assert result.exit_code == 2
    assert "--token-file" in result.output


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--storage", "a=/x", "--storage", "a=/y"], "twice"),
        (["--storage", "/x", "--worker-resource", "ssd=many"], "NAME=NUMBER"),
        (["--storage", "/x", "--worker-resource", "ssd=nan"], "NAME=NUMBER"),
        (["--storage", "/x", "--worker-resource", "ssd=-1"], "NAME=NUMBER"),
        (["--storage", "/x", "--token-file", "/does/not/exist"], "cannot be read"),
        (["--storage", "/x", "--address", "127.0.0.1:1"], "no Ray"),
    ],
)
def test_what_cannot_be_started(arguments, match):
    pytest.importorskip("ray", reason="the extra [server] brings it")
    result = forebay("start", *arguments)
    assert result.exit_code == 2, result.output
    assert match in result.output


@pytest.fixture
def started(monkeypatch, tmp_path):
    """Records the specs of gateways to start, without starting Ray."""
    reason = "the extra [server] brings Ray, which it imports"
    cluster = pytest.importorskip("forebay_compaction_ray.ray_server.cluster", reason=reason)
    specs = []
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "")  # put back at the end

    def start_gateway(spec, **given):
        specs.append(spec)
        return None, "127.0.0.1:9461"

    monkeypatch.setattr(cluster, "connected", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(cluster, "start_gateway", start_gateway)
    monkeypatch.setattr(start, "_wait", lambda _: None)

    def started(*arguments):
        result = forebay("start", "--storage", str(tmp_path), *arguments)
        assert result.exit_code == 0, result.output
        return specs[-1]

    return started


def test_workers_demand_a_share_of_a_cluster_but_not_of_a_ray_of_their_own(started):
    demands = ["--workers", "2", "--worker-cpus", "2", "--worker-resource", "ssd=1"]
    shared = started("--address", "auto", *demands)
    assert (shared.worker_cpus, shared.worker_resources) == (2.0, {"ssd": 1.0})
    own = started(*demands)
    assert (own.worker_cpus, own.worker_resources) == (0.0, {})
    assert own.workers == 2


def test_limits_are_what_is_given_and_their_defaults_else(started):
    assert started().limits == GatewayLimits()
    numbers = ["--slots", "2", "--queue", "0", "--max-job-bytes", "1g"]
    times = ["--stall-timeout", "90", "--drain-timeout", "10min"]
    assert started(*numbers, *times).limits == GatewayLimits(
        slots=2,
        queue=0,
        job_bytes=1 << 30,
        stall_timeout_s=90.0,
        drain_timeout_s=600.0,
    )


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("--stall-timeout", "soon"),
        ("--stall-timeout", "0"),
        ("--drain-timeout", "-1s"),
        ("--slots", "0"),
        ("--max-job-bytes", "much"),
        ("--port", "65536"),
        ("--metrics-port", "0"),
        ("--policy", "fair"),
    ],
)
def test_limits_that_are_none(option, given, tmp_path):
    result = forebay("start", "--storage", str(tmp_path), option, given)
    assert result.exit_code == 2
    assert option in result.output


@pytest.mark.long
def test_mutual_tls_from_the_command_to_the_settings_of_a_job(
    started, pem_files, state_dir, storage, tmp_path
):
    (tmp_path / "token").write_text("secret\n")
    token = ["--token-file", str(tmp_path / "token")]
    ca, cert, key = (str(pem_files / name) for name in ("ca.pem", "one.pem", "one.key"))
    spec = started(*token, "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", ca)
    remote, own = Concatenation(), Concatenation()
    pool = ThreadPool({"default": state_dir}, {"toy": remote})
    settings = {"token-file": str(tmp_path / "token"), "min-bytes": 0}
    settings |= {"tls-ca": ca, "queue-timeout": "1s", "request.failure-strategy": "fail"}
    shown = {"tls-cert": cert, "tls-key": key}
    with running(pool, storages=["default"], security=spec.security.read()) as gateway:
        options = [{**settings, **more, "address": gateway.address} for more in (shown, {})]
        ended = []
        for given in options:
            made = RemoteOptions.of(given)
            with RemoteCompactionService(storage, made, find_compactor=lambda _: own) as client:
                pending = job()
                client.submit(pending)
                ended.append(client.poll(pending.id, PATIENCE_S))
        there = ["--gateway", gateway.address, *token, "--tls-ca", ca]
        with_certificate = forebay("status", *there, "--tls-cert", cert, "--tls-key", key)
        without = forebay("status", *there)
    assert [status.phase for status in ended] == [CompactionPhase.DONE, CompactionPhase.FAILED]
    assert ended[1].fault is CompactionFault.UNAVAILABLE
    assert (remote.runs, own.runs) == (1, 0)
    assert (with_certificate.exit_code, without.exit_code) == (0, 2)


def test_settings_that_contradict_each_other():
    addressed = ["--conf", "spark.forebay.compaction.remote.address=127.0.0.1:9461"]
    chosen = ["--conf", "spark.forebay.compaction.service=ray"]

    def config(*arguments):
        installed = ["--conf", "spark.forebay.state.backend=lsm"]
        return CliRunner().invoke(main, ["config", *installed, *arguments])

    assert config(*addressed, *chosen).exit_code == 0
    without = config(*chosen)
    assert without.exit_code == 2
    assert "needs spark.forebay.compaction.remote.address" in without.output
    unused = config(*addressed)
    assert unused.exit_code == 2
    assert "compaction.service is 'local'" in unused.output
