"""The janitor's thread in a worker: when it starts, and how its failures are logged."""

from __future__ import annotations

import itertools
import threading

import pytest

from forebay_engine.versions.cleaning.janitor import JanitorPass
from forebay_spark_runtime.worker_process import janitor_thread
from forebay_state_api.daemon_pool import DaemonPool
from forebay_state_api.errors import StorageError
from forebay_state_api.plugins import plugins
from forebay_state_api.settings import resolve_settings
from forebay_state_api.storage.opening import open_storage


@pytest.fixture
def clock(monkeypatch):
    """The seconds of the process's clock, which every pass advances by an hour."""
    seconds = itertools.count(0, 3_600)
    monkeypatch.setattr(janitor_thread, "_seconds", lambda: next(seconds))


@pytest.fixture
def clear(tmp_path, clock):
    storage = open_storage(tmp_path)
    settings = resolve_settings({"spark.forebay.retention": "5"})

    def start(version, subtask=0):
        return janitor_thread.clear_if_due(
            storage, run_key="0" * 16, version=version, subtask=subtask, settings=settings
        )

    return start


def test_it_is_due_every_so_many_versions_in_subtask_0(clear):
    started = {version: clear(version) for version in range(1, 5)}
    assert not any(started.values())
    assert not clear(5, subtask=1)
    assert clear(5)


def test_a_pass_pauses_for_a_tenth_of_the_minimum_age(clear, monkeypatch, done):
    seconds = [0.0]
    monkeypatch.setattr(janitor_thread, "_seconds", lambda: seconds[0])
    assert clear(5)
    done(janitor_thread._pool)
    seconds[0] = 359.0
    assert not clear(10)
    seconds[0] = 360.0
    assert clear(15)
    done(janitor_thread._pool)


def test_one_pass_at_a_time(clear, monkeypatch, done):
    go_on, began = threading.Event(), threading.Event()

    def slow(self, version):
        began.set()
        go_on.wait(100)
        message = "the store is away"
        raise OSError(message)

    monkeypatch.setattr(janitor_thread.Janitor, "sweep", slow)
    assert clear(5)
    assert began.wait(100)
    assert not clear(10)
    go_on.set()
    done(janitor_thread._pool)
    assert clear(10)
    done(janitor_thread._pool)


def test_a_process_that_ends_waits_for_the_pass(clear, monkeypatch):
    go_on, swept = threading.Event(), []

    def slow(self, version):
        go_on.wait(100)
        swept.append(version)
        return JanitorPass(base=0, overtaken=False, names=())

    do = janitor_thread._pool.do_if_possible

    def queue(work):
        go_on.set()
        return do(work)

    monkeypatch.setattr(janitor_thread.Janitor, "sweep", slow)
    janitor_thread.finish_pass()
    assert clear(5)
    monkeypatch.setattr(janitor_thread._pool, "do_if_possible", queue)
    janitor_thread.finish_pass()
    assert swept == [5]


def test_without_a_thread_the_pass_is_left_out_and_the_next_one_is_not(clear, monkeypatch, done):
    def refused(thread):
        message = "can't start new thread"
        raise RuntimeError(message)

    monkeypatch.setattr(janitor_thread, "_pool", DaemonPool("forebay-janitor"))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        assert not clear(5)
    assert clear(10)
    done(janitor_thread._pool)


def test_a_failure_is_logged_and_the_next_pass_tries_again(clear, monkeypatch, caplog, done):
    def broken(self, version):
        message = f"the store is away at {version}"
        raise OSError(message)

    monkeypatch.setattr(janitor_thread.Janitor, "sweep", broken)
    for version in (5, 10):
        clear(version)
        done(janitor_thread._pool)
        assert f"the store is away at {version}" in caplog.text


def test_a_storage_that_refuses_is_one_line(clear, monkeypatch, caplog, done):
    """Such as a refused deletion, whose error has a cause of many lines."""

    def refused(self, version):
        message = "could not delete 'a':\nAccess Denied"
        raise StorageError(message) from OSError("Debug source:\nPermissionDenied {\n")

    monkeypatch.setattr(janitor_thread.Janitor, "sweep", refused)
    clear(5)
    done(janitor_thread._pool)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.exc_info is None
    assert record.message.endswith(
        ": could not delete 'a': Access Denied; the next pass tries again"
    )


def test_the_backend_clears_its_own_store_after_the_pass(clear, monkeypatch, done):
    calls = []

    def swept(self, version):
        calls.append("sweep")
        return JanitorPass(base=0, overtaken=False, names=())

    def cleared(cls, storage, options, *, retry_budget_s):
        calls.append((storage.url, sorted(options), retry_budget_s))

    backend = plugins().backend("heap")
    monkeypatch.setattr(janitor_thread.Janitor, "sweep", swept)
    monkeypatch.setattr(backend, "clear", classmethod(cleared))
    clear(5)
    done(janitor_thread._pool)
    first, (url, _, budget_s) = calls
    assert first == "sweep"
    assert url
    assert budget_s == 30.0
