"""Visits of every key by a broadcast row (docs/reference/state.md): the keys that a table lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pytest

from forebay_engine.execution import engine
from forebay_state_api.job.descriptors import StateDescriptor
from forebay_state_api.job.functions import KeyedBroadcastProcessFunction
from forebay_state_api.job.ttl import StateTtlConfig, UpdateType
from forebay_state_api.settings import EngineSettings
from forebay_testing.backends.subject import SECOND, BackendSubject, NewJob
from forebay_testing.backends.ttl import TTL, WRITES, states_with
from forebay_testing.scripts import declared

KEYS: Final = [f"key {n}" for n in range(8)]
NAMES: Final = ["v", "l", "m", "r", "a", "s"]
"""The states of `states_with`, one of each kind."""
CLEARS: Final = [(f"{name}.clear",) for name in NAMES]
ADDS: Final[dict[str, tuple[Any, ...]]] = {
    "v": ("async_update", 2),
    "l": ("async_add", 3),
    "m": ("async_put", "c", 3),
    "r": ("async_add", 1),
    "a": ("async_add", 2.0),
    "s": ("async_put", 3, 3),
}
"""A write to each state."""
LOOK: Final = [(name, (), ()) for name in NAMES]
"""Broadcast rows that visit every key and change nothing."""


class Visiting(KeyedBroadcastProcessFunction[Any, Any, Any, Any]):
    """Emits (state, key) of each visit; a broadcast row is (state, keys to clear, to write)."""

    def __init__(self, descriptors: Sequence[StateDescriptor]) -> None:
        self.descriptors = {one.name: one for one in descriptors}

    def open(self, context: Any) -> None:
        for descriptor in self.descriptors.values():
            declared(context, descriptor)

    def process_element(self, row: Any, ctx: Any) -> Any:
        """Do nothing."""

    async def process_broadcast_element(self, row: Any, ctx: Any) -> Any:
        name, cleared, written = row
        method, *arguments = ADDS[name]

        async def visit(key: Any, state: Any) -> Any:
            if key in cleared:
                await state.async_clear()
            if key in written:
                await getattr(state, method)(*arguments)
            return [(name, key)]

        await ctx.async_apply_to_keyed_state(self.descriptors[name], visit)


def visits(keys: Sequence[Any], names: Sequence[str] = NAMES) -> list[tuple[str, Any]]:
    """Return each state with each key, sorted."""
    return sorted((name, key) for name in names for key in keys)


class VisitTests(BackendSubject):
    """Eight keys with a state of each kind."""

    @pytest.fixture
    def _spills_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # Writes leave memory between two pages of keys.
        monkeypatch.setattr(engine, "SPILL_CELLS", 1)

    @pytest.mark.usefixtures("_spills_at_once")
    def test_every_key_that_has_the_state_is_visited_once(
        self, new_job: NewJob, engine_settings: EngineSettings
    ) -> None:
        states = states_with(None)
        job = new_job(*states, parallelism=2, settings=engine_settings)
        job.scripts([(key, WRITES) for key in KEYS])
        job.scripts([(key, WRITES) for key in KEYS[4:]])
        job.scripts([(key, CLEARS) for key in KEYS[:2]])
        job.scripts([("elsewhere", [("namespace", "n"), *WRITES])])
        assert sorted(job.run(Visiting(states), [], LOOK)) == visits(KEYS[2:])
        job.restart(parallelism=3)
        assert sorted(job.run(Visiting(states), [], LOOK)) == visits(KEYS[2:])

    @pytest.mark.usefixtures("_spills_at_once")
    def test_a_visit_sees_what_the_visits_before_it_have_written(
        self, new_job: NewJob, engine_settings: EngineSettings
    ) -> None:
        states = states_with(None)
        job = new_job(*states, parallelism=2, settings=engine_settings)
        job.scripts([(key, WRITES) for key in KEYS])
        # While the keys are read every second one goes, and the others are written.
        rows = [(name, KEYS[::2], KEYS[1::2]) for name in NAMES]
        found = job.run(Visiting(states), [], [*rows, *LOOK])
        assert sorted(found) == sorted(visits(KEYS) + visits(KEYS[1::2]))
        job.restart()
        assert sorted(job.run(Visiting(states), [], LOOK)) == visits(KEYS[1::2])

    @pytest.mark.usefixtures("_spills_at_once")
    def test_content_that_has_expired_is_not_visited_and_a_visit_renews_nothing(
        self, new_job: NewJob, engine_settings: EngineSettings
    ) -> None:
        ttl = StateTtlConfig(TTL, update_type=UpdateType.ON_READ_AND_WRITE)
        states = states_with(ttl)
        job = new_job(*states, settings=engine_settings)
        job.scripts([(key, WRITES) for key in KEYS])
        job.clock.advance(TTL - SECOND)
        job.scripts([("young", WRITES)])
        assert sorted(job.run(Visiting(states), [], LOOK)) == visits([*KEYS, "young"])
        job.clock.advance(SECOND)
        assert sorted(job.run(Visiting(states), [], LOOK)) == visits(["young"])
