"""Kills of workers, only while they make a version."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from forebay_engine.versions.format import layout
from forebay_engine.versions.format.markers import list_version, put_marker
from forebay_spark_runtime.demo import kill as module
from forebay_spark_runtime.demo.kill import Killer, end, unfinished
from forebay_state_api.contract.checksummed import seal
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing.committing_job import coordinates


def test_ending_a_worker_ends_it():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        end([process.pid])
        assert process.wait(100) == -signal.SIGKILL


def test_ending_what_has_ended_is_no_error():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    end([process.pid])


@pytest.fixture
def storage():
    return MemoryStorage("memory://kill-test")


def attempt(version, number):
    return coordinates(version, attempt_id=number)


def commit(storage, made):
    data = seal({})
    storage.put(layout.manifest_name(made, 0, len(data)), data)


def test_an_attempt_is_unfinished_from_its_marker_to_its_manifest(storage):
    made = attempt(3, 7)
    assert unfinished(list_version(storage, 3)) == frozenset()
    put_marker(storage, made)
    assert unfinished(list_version(storage, 3)) == {7}
    commit(storage, made)
    assert unfinished(list_version(storage, 3)) == frozenset()


def test_the_killer_takes_the_next_version_when_it_was_too_late(storage, monkeypatch):
    first, second = attempt(1, 7), attempt(2, 8)
    put_marker(storage, first)

    def late(pids):
        """The first kill comes after the version has been made."""
        list(pids)
        if not list_version(storage, 2):
            commit(storage, first)
            put_marker(storage, second)

    monkeypatch.setattr(module, "end", late)
    killer = Killer(storage, workers=list, versions=[1])
    killer.start()
    killer.join(100)
    kills = killer.stop()
    assert [(kill.version, kill.attempts) for kill in kills] == [(2, frozenset({8}))]


def test_the_killer_can_be_stopped_before_there_is_anything_to_kill(storage):
    killer = Killer(storage, workers=list, versions=[1, 2])
    killer.start()
    assert killer.stop() == []
