"""``forebay lsm`` shows files to operators, and reports damage."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from forebay_backend_lsm.commands import lsm
from forebay_engine.versions.format.manifest import Manifest, put_manifest
from forebay_state_api.contract.files import StateFile
from forebay_state_api.storage.opening import open_storage
from forebay_testing.committing_job import coordinates

FOUND = {bytes([i, i]): (0, b"value %d" % i, 0) for i in range(16)}


def manifest(model, files, version, attempt=1, **changes):
    plain = {
        "made": coordinates(version, max_parallelism=16, attempt_id=attempt),
        "uid": "op",
        "backend": "lsm",
        "parents": [],
        "opened_version": version - 1,
        "now_us": 0,
        "files": files,
        "meta": {},
        "protected": [],
        "descriptions": {},
        "operator_state": {},
        "metrics": {},
    }
    return Manifest(**plain | changes)


@pytest.fixture
def folder(tmp_path, model):
    """A state directory with one operator of two versions."""
    storage = open_storage(tmp_path / "state").child("query/op")
    old = model.write(storage, "data/a/run-1", [(model.header(), FOUND)])
    dead = {b"\x01\x01": (1, b"", 0)}
    new = model.write(storage, "data/b/run-2", [(model.header(), dead)])
    put_manifest(storage, manifest(model, [old], 1))
    put_manifest(storage, manifest(model, [old], 2, attempt=3))
    put_manifest(storage, manifest(model, [old, new], 2, attempt=4))
    storage.put("data/b/other", b"no sorted file")
    return tmp_path / "state"


def run(*arguments, status=0):
    result = CliRunner().invoke(lsm, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result.output


def test_a_file_is_inspected(folder):
    output = run("inspect", folder / "query/op/data/a/run-1")
    assert "run-1: " in output
    assert "format 1, key groups 0..15" in output
    assert "value" in output
    assert "\t16\t" in output
    assert "lz4" in output


def test_a_directory_shows_runs_and_amplification(folder):
    for place in (folder, folder / "query/op"):
        output = run("inspect", place)
        assert "version 2" in output
        assert "version 1" not in output
        assert "2 files" in output
        assert "read amplification 2 runs" in output
        assert "space amplification 1." in output
        assert "data/a/run-1" in output


def test_a_directory_without_manifests_shows_its_files(folder):
    output = run("inspect", folder / "query/op/data")
    assert "a/run-1: " in output
    assert "b/run-2: " in output


def test_sound_files_verify(folder):
    assert "read 2 file(s), 0 damaged" in run("verify", folder)
    assert "read 2 file(s), 0 damaged" in run("verify", folder / "query/op/data")


@pytest.mark.long
def test_every_damage_is_reported(folder):
    path = folder / "query/op/data/a/run-1"
    good = path.read_bytes()
    for i in range(0, len(good), 7):
        path.write_bytes(good[:i] + bytes([good[i] ^ 0x10]) + good[i + 1 :])
        output = run("verify", folder, status=1)
        assert "DAMAGED" in output
        assert "data/a/run-1" in output
        assert "read 2 file(s), 1 damaged" in output
    path.write_bytes(good[:-1])
    assert "data/a/run-1" in run("verify", folder, status=1)
    path.unlink()
    assert "it is missing" in run("verify", folder, status=1)


def test_a_damaged_manifest_is_reported(folder):
    (path, *_) = sorted((folder / "query/op/versions").rglob("manifest-*"))
    path.write_bytes(path.read_bytes()[:-5])
    assert path.name in run("verify", folder, status=1)


def test_a_file_without_a_manifest_is_verified_too(folder, model):
    storage = open_storage(folder).child("query/op")
    file = model.write(storage, "data/c/run-3", [(model.header(), FOUND)])
    assert isinstance(file, StateFile)
    path = folder / "query/op/data/c/run-3"
    assert "read 3 file(s), 0 damaged" in run("verify", folder)
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(bytes(data))
    assert "data/c/run-3" in run("verify", folder, status=1)


def test_files_of_another_operator_are_verified_where_they_lie(folder, model):
    root = open_storage(folder)
    shared = model.write(root, "query/op/data/a/shared", [(model.header(), FOUND)])
    named = StateFile(
        name=f"from/{shared.name}", size=shared.size, range=model.GROUPS, meta=shared.meta
    )
    put_manifest(root.child("fork/op"), manifest(model, [named], 1))
    assert "0 damaged" in run("verify", folder)
    assert "0 damaged" in run("verify", folder / "fork")
    data = root.get(shared.name)
    root.put(shared.name, data[:40] + b"x" + data[41:])
    output = run("verify", folder, status=1)
    assert output.count("DAMAGED") == 1
    assert shared.name in output


def test_as_json(folder):
    (operator,) = json.loads(run("inspect", folder, "--json"))["operators"]
    (subtask,) = operator["subtasks"]
    assert (operator["path"], operator["version"]) == ("query/op/", 2)
    assert (subtask["files"], subtask["read_amplification"]) == (2, 2)
    assert {one["file"] for one in subtask["runs"]} == {"data/a/run-1", "data/b/run-2"}
    (file,) = json.loads(run("inspect", folder / "query/op/data/a/run-1", "--json"))["files"]
    assert (file["states"][0]["cells"], file["states"][0]["put"]) == (16, 16)
    sound = {"files": 2, "damaged_objects": 0, "damage": []}
    assert json.loads(run("verify", folder, "--json")) == sound
    (folder / "query/op/data/a/run-1").unlink()
    verified = json.loads(run("verify", folder, "--json", status=1))
    assert verified["damaged_objects"] == len(verified["damage"]) == 1


def test_files_of_another_backend_are_not_called_empty(folder, model):
    storage = open_storage(folder).child("query/other")
    other = StateFile(name="data/a/snapshot", size=3, range=model.GROUPS)
    storage.put(other.name, b"abc")
    put_manifest(storage, manifest(model, [other], 1, backend="heap"))
    output = run("inspect", folder / "query/other")
    assert "backend heap: 1 files, 3 bytes; only files of the lsm backend can be" in output
    assert "cells" not in output
    plain = json.loads(run("inspect", folder / "query/other", "--json"))
    assert plain["operators"][0]["subtasks"][0]["backend"] == "heap"
    single = CliRunner().invoke(lsm, ["inspect", str(folder / "query/other/data/a/snapshot")])
    assert "snapshot is not a file of the lsm backend" in str(single.exception)


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_place_that_does_not_exist_is_an_error(tmp_path, command):
    missing = tmp_path / "nonexistent"
    result = CliRunner().invoke(lsm, [command, str(missing)])
    assert "there is no" in str(result.exception)
    assert not missing.exists()
