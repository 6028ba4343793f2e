"""Operator state and broadcast state, read from outside."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from forebay_state_api import (
    CheckpointedFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
)
from forebay_state_processor.reading import open_state
from forebay_testing import FunctionHarness


class Row(NamedTuple):
    user: str


class Remember(KeyedProcessFunction, CheckpointedFunction):
    def initialize_state(self, context):
        store = context.operator_state_store
        self.seen = store.get_list_state(ListStateDescriptor("seen", str))
        self.everyone = store.get_union_list_state(ListStateDescriptor("everyone", str))
        self.rules = store.get_broadcast_state(MapStateDescriptor("rules", str, int))

    def process_element(self, row, ctx):
        self.seen.add(row.user)
        self.everyone.add(row.user)

    def snapshot_state(self, context):
        self.rules.put("version", context.version)


@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_each_subtask_s_part_is_shown(tmp_path, backend):
    users = [f"u{n}" for n in range(9)]
    name = {"query": "query", "uid": "operator"}
    made = {**name, "backend": backend, "parallelism": 3, "state_dir": tmp_path}
    with FunctionHarness(Remember(), "user", **made) as harness:
        harness.process([Row(user) for user in users])
        harness.process([Row("late")])
    with open_state(str(tmp_path), version=1, **name) as snapshot:
        found = {one.name: (one.mode, one.type) for one in snapshot.operator_states.values()}
        assert found == {
            "everyone": ("union", "str"),
            "rules": ("broadcast", "str → int | None"),
            "seen": ("split", "str"),
        }
        seen = snapshot.operator_state("seen")
        assert len(seen) == 3
        assert sorted(user for part in seen for user in part) == users
        assert snapshot.operator_state("everyone") == seen
        assert snapshot.operator_state("rules") == [{"version": 1}] * 3
        assert not snapshot.states
