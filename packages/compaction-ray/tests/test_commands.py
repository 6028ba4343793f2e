"""``forebay compaction …`` against a gateway of this process."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from compaction_ray_toys import Concatenation, ThreadPool, running

from forebay_compaction_ray import asking
from forebay_compaction_ray.gateway.limits import GatewayLimits
from forebay_compaction_ray.gateway.server import ServerSecurity
from forebay_compaction_ray.worker.nothing import NothingCompactor
from forebay_state_api.cli import main


def forebay(*arguments):
    return CliRunner().invoke(main, ["compaction", *arguments])


@pytest.fixture
def gateway(state_dir):
    compactors = {"toy": Concatenation(), "nothing-1": NothingCompactor()}
    with running(
        ThreadPool({"default": state_dir}, compactors),
        storages=["default"],
        limits=GatewayLimits(ping_every_s=0.05),
        security=ServerSecurity(token="secret"),
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
    assert "w0" in result.output
    assert "ready" in result.output


def test_scale(there, gateway):
    assert forebay("scale", "3", *there).exit_code == 0
    assert len(gateway.core.crew.workers) == 3


def test_drain(there, gateway):
    result = forebay("drain", *there)
    assert "draining" in result.output
    assert gateway.core.hello()["state"] == "draining"


def test_stop(there, gateway):
    assert forebay("stop", *there).exit_code == 0
    assert gateway.stopped.wait(5)


def test_doctor(there, gateway):
    result = forebay("doctor", *there)
    assert result.exit_code == 0, result.output
    assert "a job comes back" in result.output
    assert "BAD" not in result.output
    gateway.on_loop(gateway.core.drain)
    result = forebay("doctor", *there)
    assert result.exit_code != 0
    assert "it drains" in result.output


class Told:
    """Answers `Describe` with one description after another, the last one again and again."""

    def __init__(self, *workers_up, workers=2):
        self.answers = [{"workers": up, "worker_list": [{}] * workers} for up in workers_up]
        self.asked = 0

    def call(self, method, message):
        self.asked += 1
        return self.answers[min(self.asked, len(self.answers)) - 1]


@pytest.mark.parametrize(
    ("told", "up", "asked"),
    [
        (Told(2), 2, 1),
        (Told(0, 0, 1), 1, 3),
        (Told(0, workers=0), 0, 1),
        (Told(0), 0, 76),
    ],
    ids=["all up", "just begun", "to be none", "never"],
)
def test_doctor_waits_for_workers_that_come_up(monkeypatch, told, up, asked):
    now = [100.0]
    clock = SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + seconds)
    )
    monkeypatch.setattr(asking, "time", clock)
    assert asking._described(told)["workers"] == up
    assert told.asked == pytest.approx(asked, abs=1 if asked > 3 else 0)


def test_nobody_there():
    result = forebay("status", "--gateway", "127.0.0.1:1")
    assert result.exit_code == 2
    assert "cannot be reached" in result.output


def test_the_wrong_token(gateway):
    result = forebay("status", "--gateway", gateway.address)
    assert result.exit_code == 2
    assert "token" in result.output


def test_endpoints(state_dir, storage):
    place = ["--conf", f"spark.forebay.state.dir={state_dir}"]
    assert "nothing" in forebay("endpoints", "list", *place).output
    assert "10.0.0.1:9461" in forebay("endpoints", "add", "10.0.0.1:9461", *place).output
    removed = forebay("endpoints", "remove", "10.0.0.1:9461", "10.0.0.2:1", *place)
    assert "added" not in removed.output
    listed = forebay("endpoints", "list", *place)
    assert listed.output.splitlines() == ["removed  10.0.0.1:9461", "removed  10.0.0.2:1"]


def test_endpoints_of_what():
    result = forebay("endpoints", "list")
    assert result.exit_code == 2
    assert "state.dir" in result.output


def test_an_open_door_is_refused_before_anything_starts(tmp_path):
    result = forebay("start", "--host", "0.0.0.0", "--storage", str(tmp_path))
    assert result.exit_code == 2
    assert "--token-file" in result.output


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--storage", "a=/x", "--storage", "a=/y"], "twice"),
        (["--storage", "/x", "--worker-resource", "ssd=many"], "NAME=NUMBER"),
        (["--storage", "/x", "--token-file", "/does/not/exist"], "cannot be read"),
        (["--storage", "/x", "--address", "127.0.0.1:1"], "no Ray"),
    ],
)
def test_what_cannot_be_started(arguments, match):
    pytest.importorskip("ray", reason="the extra [server] brings it")
    result = forebay("start", *arguments)
    assert result.exit_code == 2, result.output
    assert match in result.output


def test_settings_that_contradict_each_other():
    addressed = ["--conf", "spark.forebay.compaction.remote.address=127.0.0.1:9461"]
    chosen = ["--conf", "spark.forebay.compaction.service=ray"]

    def config(*arguments):
        return CliRunner().invoke(main, ["config", *arguments])

    assert config(*addressed, *chosen).exit_code == 0
    without = config(*chosen)
    assert without.exit_code == 2
    assert "needs spark.forebay.compaction.remote.address" in without.output
    unused = config(*addressed)
    assert unused.exit_code == 2
    assert "compaction.service is 'local'" in unused.output
