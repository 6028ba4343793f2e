"""Operator state (docs/reference/state.md), in addition to the keyed state of a backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forebay_state_api.job.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.job.functions import KeyedProcessFunction
from forebay_state_api.job.operator_state import (
    CheckpointedFunction,
)
from forebay_testing.backends.subject import BackendSubject, NewJob

LIST = ListStateDescriptor("list", int)
UNION = ListStateDescriptor("union", str)
BROADCAST: MapStateDescriptor[str, int] = MapStateDescriptor("broadcast", str, int)


class Silent(KeyedProcessFunction[Any, Any, Any]):
    """Emits nothing and keeps nothing."""

    def process_element(self, row: Any, ctx: Any) -> Any:
        """Do nothing."""


class Kept(Silent, CheckpointedFunction):
    """Reports the restored state, by subtask, and lets the test write in ``snapshot_state``."""

    def __init__(
        self,
        declare: Callable[[Any], dict[str, Any]],
        write: Callable[[Any, int], None] = lambda _states, _subtask: None,
    ) -> None:
        """``declare(store)`` returns states by name; ``write(states, subtask)`` changes them."""
        self.declare = declare
        self.write = write
        self.seen: dict[int, dict[str, Any]] = {}
        """Subtask → the contents of each state; shared by all copies."""

    def initialize_state(self, context: Any) -> None:
        subtask = context.keyed_state_store.subtask_index
        self.subtask = subtask
        self.states = self.declare(context.operator_state_store)
        self.seen[subtask] = {name: _content(state) for name, state in self.states.items()}
        self.seen[subtask]["restored"] = context.is_restored

    def snapshot_state(self, context: Any) -> None:
        del context
        self.write(self.states, self.subtask)


def _content(state: Any) -> Any:
    return dict(state.items()) if hasattr(state, "items") else state.get()


def all_three(store: Any) -> dict[str, Any]:
    """One state for each way of redistribution."""
    return {
        "list": store.get_list_state(LIST),
        "union": store.get_union_list_state(UNION),
        "broadcast": store.get_broadcast_state(BROADCAST),
    }


def write_three(states: Any, subtask: int) -> None:
    """Subtask ``i`` keeps ``i + 1`` numbers, its own name, and a copy of the map."""
    states["list"].update([subtask * 10 + n for n in range(subtask + 1)])
    states["union"].update([f"subtask {subtask}"])
    states["broadcast"].put("n", subtask)


class OperatorStateTests(BackendSubject):
    """The engine stores operator state, in the version that the backend's commit belongs to."""

    def test_a_restart_finds_keyed_and_operator_state_of_one_version(self, new_job: NewJob) -> None:
        class Both(KeyedProcessFunction[Any, Any, Any], CheckpointedFunction):
            def initialize_state(self, context: Any) -> None:
                value = ValueStateDescriptor("v", int, default=0)
                self.value = context.keyed_state_store.get_state(value)
                self.list = context.operator_state_store.get_list_state(LIST)

            def process_element(self, row: Any, ctx: Any) -> Any:
                self.value.update((self.value.value() or 0) + 1)
                self.list.add(self.value.value())
                return [(self.value.value(), self.list.get())]

            def snapshot_state(self, context: Any) -> None:
                del context

        job = new_job()
        assert job.run(Both(), [("a",)]) == [(1, [1])]
        assert job.run(Both(), [("a",)], crash=True) == [(2, [1, 2])]
        job.restart()
        assert job.run(Both(), [("a",)]) == [(2, [1, 2])]

    def test_a_rescale_redistributes_operator_state(self, new_job: NewJob) -> None:
        job = new_job(parallelism=2)
        job.run(Kept(all_three, write_three), [("a",)])
        job.restart(parallelism=3)
        function = Kept(all_three)
        job.run(function, [("a",)])
        assert function.seen == {
            subtask: {
                "list": [[0], [10], [11]][subtask],
                "union": ["subtask 0", "subtask 1"],
                "broadcast": {"n": subtask % 2},
                "restored": True,
            }
            for subtask in range(3)
        }
