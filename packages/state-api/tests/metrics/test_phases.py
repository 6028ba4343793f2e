"""The clock that divides a task's time among phases."""

from __future__ import annotations

import pytest

from forebay_state_api.metrics.phases import Phase, PhaseClock


class Now:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def test_phases_add_up_to_all_the_time() -> None:
    now = Now()
    clock = PhaseClock(now)
    now.s += 1
    with clock.during(Phase.FUNCTION):
        now.s += 2
        with clock.during(Phase.STATE_WAIT):
            now.s += 4
        now.s += 8
    now.s += 16
    assert clock.seconds() == {"state_wait": 4, "function": 10, "rest": 17}
    assert sum(clock.seconds().values()) == now.s - 100


def test_a_phase_that_goes_on_counts_up_to_now() -> None:
    now = Now()
    clock = PhaseClock(now)
    clock.switch(Phase.INPUT)
    now.s += 3
    assert clock.seconds() == {"input": 3}
    now.s += 1
    assert clock.seconds() == {"input": 4}


def test_a_failure_ends_its_phase() -> None:
    clock = PhaseClock(Now())
    with pytest.raises(ZeroDivisionError), clock.during(Phase.OPEN):
        _ = 1 / 0
    assert clock.switch(Phase.REST) is Phase.REST


def test_every_phase_has_a_meaning() -> None:
    assert all(phase.meaning.endswith(".") for phase in Phase)
