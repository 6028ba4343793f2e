"""Notifications of committed versions: recipients, time and order."""

from __future__ import annotations

import pytest

from forebay_state_api.errors import FunctionError
from forebay_state_api.job.functions import KeyedProcessFunction
from forebay_state_api.job.operator_state import CheckpointedFunction, CheckpointListener
from forebay_testing.backends.operator_state import Silent

from ..subjects import OnReference


class TestCheckpointListener(OnReference):
    def test_the_life_of_a_function(self, new_job):
        calls = []

        class Telling(KeyedProcessFunction, CheckpointedFunction, CheckpointListener):
            def initialize_state(self, context):
                calls.append(("initialize_state", context.is_restored))

            def open(self, context):
                calls.append(("open", context.batch_id))

            def notify_checkpoint_complete(self, version):
                calls.append(("complete", version))

            def process_element(self, row, ctx):
                del ctx
                calls.append(("record", row))

            def snapshot_state(self, context):
                calls.append(("snapshot_state", context.version))

            def close(self):
                calls.append(("close", None))

        job = new_job()
        job.run(Telling(), [("a",)])
        assert [name for name, _ in calls] == [
            "initialize_state",
            "open",
            "record",
            "snapshot_state",
            "close",
        ]
        calls.clear()
        job.run(Telling(), [("a",)], crash=True)
        job.run(Telling(), [("a",)])
        whole = [
            ("initialize_state", True),
            ("open", 1),
            ("complete", 1),
            ("record", ("a",)),
            ("snapshot_state", 2),
            ("close", None),
        ]
        crashed = [call for call in whole if call[0] != "snapshot_state"]
        assert calls == crashed + whole

    def test_an_exception_fails_the_batch_and_revokes_nothing(self, new_job):
        class Failing(Silent, CheckpointListener):
            def notify_checkpoint_complete(self, version):
                raise LookupError(f"version {version}")

        job = new_job()
        job.run(Failing(), [])
        with pytest.raises(FunctionError, match=r"notify_checkpoint_complete .*version 1"):
            job.run(Failing(), [])
        assert job.run(Silent(), []) == []
