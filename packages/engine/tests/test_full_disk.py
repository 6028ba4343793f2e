"""A full disk under a log or the history: the job goes on, and its state is right."""

from __future__ import annotations

import contextlib
import logging
from datetime import timedelta
from pathlib import Path

import pytest

from forebay_engine.versions.cleaning.janitor import Janitor
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor
from forebay_state_api.errors import StorageError
from forebay_state_api.plugins import plugins
from forebay_state_api.storage.opening import open_storage
from forebay_testing.job import KeyedJob
from forebay_testing.storage import Fault, FaultyStorage

FULL = Path("/dev/full")
STATE = ValueStateDescriptor("n", int, default=0)


class Count(KeyedProcessFunction):
    def open(self, context):
        self.n = context.get_state(STATE)

    def process_element(self, row, ctx):
        self.n.update(self.n.value() + 1)
        return []


@pytest.mark.skipif(not FULL.exists(), reason="needs Linux's /dev/full")
@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_a_log_on_a_full_disk(backend, tmp_path, capsys):
    handler = logging.FileHandler(FULL)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        logging.getLogger("forebay_state_api").info("this does not fit")
        job = KeyedJob(plugins().backend(backend), open_storage(tmp_path), key_type=str)
        for _ in range(3):
            job.run(Count(), [("ann",), ("bob",)])
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        with contextlib.suppress(OSError):
            handler.close()
    assert job.peek(STATE, "ann") == 3
    assert "No space left on device" in capsys.readouterr().err, "the log did fail"


def test_a_history_on_a_full_disk(tmp_path, caplog):
    full = Fault(
        operation="put",
        name="*/history/*",
        count=None,
        error=lambda: StorageError("No space left on device"),
    )
    storage = FaultyStorage(open_storage(tmp_path), full)
    job = KeyedJob(plugins().backend("heap"), storage, key_type=str)
    for _ in range(6):
        job.run(Count(), [("ann",)])
    janitor = Janitor(job.storage, run_key=job.run_key, retention=2, min_age=timedelta(0))
    swept = janitor.sweep(job.batch_id)
    assert swept.names, "clearing goes on: it is what a full disk needs"
    job.run(Count(), [("ann",)])
    assert job.peek(STATE, "ann") == 7
    assert "the figures of these versions are lost" in caplog.text
