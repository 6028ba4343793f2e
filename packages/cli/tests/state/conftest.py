"""A stored job of each backend, and the commands of ``forebay state`` on it."""

from __future__ import annotations

import shutil
from datetime import timedelta
from functools import cache

import pytest
from click.testing import CliRunner

from forebay_cli.main import main
from forebay_state_api import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.storage.opening import open_storage
from forebay_testing import KeyedJob, ManualClock

from .stored_job import START, Account


@pytest.fixture(scope="session")
def stored(tmp_path_factory):
    """Returns the directory of a job and the job, which is run once for each backend."""

    @cache
    def stored(backend_class):
        directory = tmp_path_factory.mktemp("stored")
        job = KeyedJob(
            backend_class,
            open_storage(str(directory)),
            descriptors=(
                ValueStateDescriptor("account", Account),
                ListStateDescriptor("seen", int),
                MapStateDescriptor("cards", str, float),
                ValueStateDescriptor("last", str, ttl=StateTtlConfig(timedelta(hours=1))),
            ),
            key_type=tuple[str, int],
            parallelism=2,
            clock=ManualClock(START),
        )
        job.scripts(
            [
                (("ann", 1), [("account.update", Account("ann", 150)), ("seen.add", 3)]),
                (("bob, jr", 2), [("account.update", Account("bob", 20)), ("cards.put", "x", 1.5)]),
            ]
        )
        job.scripts(
            [
                (("ann", 1), [("account.update", Account("ann", 99)), ("seen.add", 4)]),
                (("ann", 1), [("last.update", "now"), ("namespace", "w"), ("seen.add", 7)]),
            ]
        )
        job.do(("cid", 3), ("seen.add", 1))
        return directory, job

    return stored


@pytest.fixture
def job(stored, backend_class, tmp_path):
    """The job; ``tmp_path`` is a copy of its state directory."""
    directory, job = stored(backend_class)
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    return job


@pytest.fixture
def run(job, tmp_path):
    """Run a command; return stdout and stderr."""

    def run(*arguments, status=0):
        asked = ["state", *map(str, arguments), "--state-dir", str(tmp_path)]
        result = CliRunner().invoke(main, asked)
        assert result.exit_code == status, (result.output, result.exception)
        return result.stdout, result.stderr

    return run
