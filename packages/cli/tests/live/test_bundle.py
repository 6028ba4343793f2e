"""``forebay bundle``: a bug report holds the shape of state, and nothing that users stored."""

from __future__ import annotations

import json
import shutil
import zipfile
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from forebay_cli.live import bundled_operator
from forebay_cli.live.bundle import bundle
from forebay_cli.options import state_directory
from forebay_engine.versions.choosing.savepoints import create_savepoint
from forebay_state_api import (
    CheckpointedFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.plugins import plugins
from forebay_state_api.storage.opening import open_storage
from forebay_testing.job import KeyedJob

SECRET = "planted-secret"
KEYS = [f"planted-key-{n}" for n in range(20)]
NUMBER = 918_273_645_546
FAR = datetime(2077, 1, 1, tzinfo=UTC)
PLANTED = ["planted", str(NUMBER), SECRET, "hunter2", "10.9.8.7", "bucket-of-planets"]


class Plants(CheckpointedFunction, KeyedProcessFunction):
    """Stores planted keys and values in every kind of state."""

    def open(self, context):
        self.name = context.get_state(ValueStateDescriptor("name", str))
        self.seen = context.get_list_state(ListStateDescriptor("seen", str))
        self.by = context.get_map_state(MapStateDescriptor("by", str, int))
        self.last = context.get_reducing_state(ReducingStateDescriptor("last", max, int))

    def initialize_state(self, context):
        self.offsets = context.operator_state_store.get_list_state(
            ListStateDescriptor("offsets", str)
        )

    def snapshot_state(self, context):
        self.offsets.update(["planted-offset"])

    def process_element(self, row, ctx):
        self.name.update(f"planted-value-of-{row[0]}")
        self.seen.add("planted-element")
        self.by.put("planted-user-key", NUMBER)
        self.last.add(NUMBER)
        ctx.timers.register_processing_time(FAR)
        yield row

    def on_timer(self, at, ctx):
        return ()


@pytest.fixture(scope="module", params=["heap", "lsm"])
def stored(request, tmp_path_factory):
    """The state directory of an operator with planted data, and a savepoint with a planted name."""
    directory = tmp_path_factory.mktemp(request.param) / "state"
    storage = open_storage(directory)
    job = KeyedJob(plugins().backend(request.param), storage, parallelism=2, key_type=str)
    for _ in range(4):
        job.run(Plants(), [(key, "planted-row") for key in KEYS])
    create_savepoint(job.storage, "planted-savepoint", uid="operator")
    return directory


def bundled(directory, output, *arguments):
    """Run the command; return file → text of its archive."""
    command = ["--state-dir", str(directory), "--output", str(output), *arguments]
    result = CliRunner().invoke(bundle, command)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    with zipfile.ZipFile(output) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


@pytest.mark.long
def test_nothing_that_was_planted_is_in_the_archive(stored, tmp_path, monkeypatch):
    # A local directory takes no options of a network store.
    monkeypatch.setattr(state_directory, "open_storage", lambda place, _: open_storage(place))
    properties = tmp_path / "spark.conf"
    properties.write_text(
        f"spark.forebay.storage.aws_secret_access_key {SECRET}\n"
        f"spark.forebay.storage.proxy_url http://admin:hunter2@10.9.8.7/\n"
        f"spark.forebay.state.dir s3://bucket-of-planets/state\n"
        f"spark.my.password {SECRET}\n"
        "spark.forebay.in-flight-limit 77\n"
    )
    found = bundled(stored, tmp_path / "b.zip", "--properties-file", str(properties))
    everything = "\n".join([*found, *found.values()])
    assert [text for text in PLANTED if text in everything] == []
    assert (tmp_path / "b.zip").read_bytes().find(b"planted") == -1
    settings = json.loads(found["settings.json"])["settings"]
    assert settings["spark.forebay.in-flight-limit"] == {"value": "77", "from": "configuration"}
    assert settings["spark.forebay.storage.aws_secret_access_key"]["value"] == "***"


def test_what_was_planted_is_in_the_state_directory(stored):
    """So that the test above looks for what is there."""
    files = [path.read_bytes() for path in stored.rglob("*") if path.is_file()]
    assert any(b"planted-savepoint" in data for data in files)
    assert any(b"planted-offset" in data for data in files)


def test_it_has_the_shape_of_state(stored, tmp_path, monkeypatch):
    monkeypatch.setattr(bundled_operator, "MANIFESTS", 5)
    found = bundled(stored, tmp_path / "b.zip")
    assert "pyarrow" in json.loads(found["versions.json"])["libraries"]
    manifests = json.loads(found["operators/1/manifests.json"])
    assert [one["version"] for one in manifests] == [4, 4, 3, 3, 2]
    newest = manifests[0]
    assert newest["metrics"]["rows_in"] > 0
    assert newest["metrics"]["phase_seconds_function"] > 0
    assert newest["files"][0]["size"] > 0
    assert newest["has_timers"] is True
    summary = json.loads(found["operators/1/summary.json"])
    assert (summary["uid"], summary["version"]) == ("operator", 4)
    assert summary["pins"]["savepoints"] == 1
    assert summary["objects"]["versions"]["objects"] > 0
    assert len(json.loads(found["operators/1/versions.json"])) == 4
    states = json.loads(found["operators/1/states.json"])
    assert states["key"] == "str"
    assert {one["name"] for one in states["states"]} == {"name", "seen", "by", "last", "offsets"}
    skew = json.loads(found["operators/1/skew.json"])
    assert len(skew["subtasks"]) == 2
    assert len(skew["key_groups"]["bytes"]) == 8


def test_the_newest_version_comes_before_manifests_of_one_that_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(bundled_operator, "MANIFESTS", 3)
    directory = tmp_path / "state"
    heap = plugins().backend("heap")
    job = KeyedJob(heap, open_storage(directory), parallelism=4, key_type=str)
    for _ in range(2):
        job.run(Plants(), [(key, "planted-row") for key in KEYS])
    with job.subtask(Plants(), 0) as running:
        running.drain()
        running.commit()
    found = bundled(directory, tmp_path / "b.zip")
    manifests = json.loads(found["operators/1/manifests.json"])
    assert [one["version"] for one in manifests] == [2, 2, 2, 2]
    assert {"operators/1/states.json", "operators/1/skew.json"} <= found.keys()


def test_a_manifest_that_is_damaged_is_said_to_be(stored, tmp_path):
    directory = shutil.copytree(stored, tmp_path / "copy")
    newest = min((directory / "query/operator/versions").glob("*/*/manifest-*"))
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    found = bundled(directory, tmp_path / "b.zip")
    assert "damaged" in json.loads(found["operators/1/manifests.json"])


def test_an_archive_is_not_overwritten(stored, tmp_path):
    bundled(stored, tmp_path / "b.zip")
    with pytest.raises(ConfigurationError, match="exists: name another file with --output"):
        bundled(stored, tmp_path / "b.zip")
    with pytest.raises(ConfigurationError, match=r"no such operator in .*state"):
        bundled(stored, tmp_path / "c.zip", "--uid", "nobody")
    with pytest.raises(ConfigurationError, match=r"a bundle is a zip archive: let .*b\.tgz"):
        bundled(stored, tmp_path / "b.tgz")
    assert (tmp_path / "b.zip").stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigurationError, match="cannot be written: No such file or directory"):
        bundled(stored, tmp_path / "nowhere" / "b.zip")
