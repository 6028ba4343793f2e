"""The harness runs functions on a backend that compacts, as Spark's workers would."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from forebay_spark_runtime.testing import FunctionHarness
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor
from forebay_state_api.errors import StateAccessError, UnknownPluginError
from forebay_state_api.versions.reader import open_version

COUNT = ValueStateDescriptor("n", int, default=0)


class Row(NamedTuple):
    user: str


class Count(KeyedProcessFunction):
    def open(self, context):
        self.n = context.get_state(COUNT)

    def process_element(self, row, ctx):
        self.n.update(self.n.value() + 1)
        yield row.user, self.n.value()


def test_compactions_are_submitted_found_and_installed(tmp_path):
    options = {"max-runs": 3}
    with FunctionHarness(
        Count(), "user", backend="lsm", backend_options=options, state_dir=tmp_path
    ) as harness:
        for number in range(1, 31):
            assert harness.process([Row("a"), Row("b")]) == [("a", number), ("b", number)]
        harness.restart(parallelism=2)
        assert sorted(harness.process([Row("a"), Row("b")])) == [("a", 31), ("b", 31)]
        assert harness.state(COUNT, "a") == 31
        with open_version(harness._storage, uid="test", version=30) as reader:
            files = [file for parent in reader.parents for file in parent.files]
        assert any("/compaction-" in file.name for file in files)
    with pytest.raises(StateAccessError, match="closed"):
        harness.process([])


def test_a_service_that_is_not_installed():
    with pytest.raises(UnknownPluginError, match="locla"):
        FunctionHarness(Count(), "user", compaction="locla")
