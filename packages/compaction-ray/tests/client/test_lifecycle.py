"""Every event in every state of a job and of a gateway, and what follows from the tables."""

from __future__ import annotations

import attrs
import pytest

from forebay_compaction_ray.client.lifecycle import (
    CallEvent,
    ConnectionState,
    Event,
    Patience,
    State,
    Trouble,
    TroubleKind,
    combined,
    next_state,
)
from forebay_compaction_ray.options import RemoteOptions
from forebay_state_api.contract.compaction_service import CompactionPhase

E, S = Event, State
ENDED = {E.DONE: S.DONE, E.HAND_BACK: S.LOST, E.UNWANTED: S.ABORTED, E.LEAVE: S.LEFT}
FOUND = {**ENDED, E.QUEUED: S.QUEUED, E.RUNNING: S.RUNNING}
OFFERED = {**FOUND, E.AGAIN: S.OFFERED, E.FALL_BACK: S.LOCAL, E.FAIL: S.FAILED}
EXPECTED = {
    S.ASKED: {**FOUND, E.NOWHERE: S.UNKNOWN},
    S.OFFERED: OFFERED,
    S.QUEUED: OFFERED,
    S.RUNNING: OFFERED,
    S.LOCAL: {**ENDED, E.FAIL: S.FAILED},
}
ENDS = [S.DONE, S.FAILED, S.LOST, S.UNKNOWN, S.ABORTED, S.LEFT]


@pytest.mark.parametrize("state", State)
def test_every_event_in_every_state(state):
    for event in Event:
        if state in ENDS:
            assert next_state(state, event) is state
        elif event in EXPECTED[state]:
            assert next_state(state, event) is EXPECTED[state][event]
        else:
            with pytest.raises(ValueError, match=state.label):
                next_state(state, event)


@pytest.mark.parametrize("reach", [ConnectionState.UP, ConnectionState.RESTING])
def test_every_call_in_every_state_of_a_gateway(reach):
    assert reach.after(CallEvent.ANSWERED) is ConnectionState.UP
    assert reach.after(CallEvent.RENEWED) is ConnectionState.UP
    assert reach.after(CallEvent.SILENT) is ConnectionState.RESTING
    assert reach.after(CallEvent.CLOSE) is ConnectionState.CLOSED


def test_a_closed_gateway_stays_closed():
    assert {ConnectionState.CLOSED.after(call) for call in CallEvent} == {ConnectionState.CLOSED}


def test_what_has_ended_has_ended_for_its_owner():
    for state in State:
        told = state.phase.ended and state is not S.ASKED
        assert state.ended == told
    assert S.ASKED.phase is CompactionPhase.UNKNOWN, "a result may be in storage meanwhile"


def reachable(first, *, without=()):
    found, left = set(), [first]
    while left:
        state = left.pop()
        if state not in found:
            found.add(state)
            left += [s for e, s in EXPECTED.get(state, {}).items() if e not in without]
    return found


def test_from_every_state_there_is_an_end():
    for state in EXPECTED:
        assert reachable(state) & set(ENDS)


def test_only_a_decision_or_the_local_compaction_fails_a_job():
    """No event that a gateway reports does; `Patience.decide` gives no `FAIL` with `fallback`."""
    assert S.FAILED not in reachable(S.OFFERED, without=(E.FAIL, E.FALL_BACK))
    assert S.FAILED in reachable(S.LOCAL)


FALLBACK = RemoteOptions.of({"address": "a:1"})
FAIL = attrs.evolve(FALLBACK, failure_strategy="fail")
PATIENCE = Patience(options=FALLBACK, clock=lambda: 0.0)
FRESH, BEGUN_OFTEN = {"tries": 1}, {"tries": 3}
WAITED = {"submitted_s": -30.0, "idle_since_s": -30.0}
OVERDUE = {"submitted_s": -300.0}


@pytest.mark.parametrize(
    ("kind", "spent", "fallback", "fail"),
    [
        (TroubleKind.NEVER, FRESH, E.FALL_BACK, E.FAIL),
        (TroubleKind.AWAY, FRESH, E.FALL_BACK, E.AGAIN),
        (TroubleKind.AWAY, WAITED, E.FALL_BACK, E.FAIL),
        (TroubleKind.BUSY, FRESH, E.AGAIN, E.AGAIN),
        (TroubleKind.BUSY, WAITED, E.FALL_BACK, E.FAIL),
        (TroubleKind.BUSY, OVERDUE, E.FALL_BACK, E.FAIL),
        (TroubleKind.FAILED, FRESH, E.AGAIN, E.AGAIN),
        (TroubleKind.FAILED, WAITED, E.AGAIN, E.AGAIN),
        (TroubleKind.FAILED, BEGUN_OFTEN, E.FALL_BACK, E.AGAIN),
        (TroubleKind.FAILED, {**BEGUN_OFTEN, **WAITED}, E.FALL_BACK, E.FAIL),
        (TroubleKind.FAILED, OVERDUE, E.FALL_BACK, E.FAIL),
    ],
)
def test_what_becomes_of_a_job_that_nobody_has(kind, spent, fallback, fail):
    patience = attrs.evolve(PATIENCE, **spent)
    trouble = Trouble(kind, "why", "queue")
    assert patience.decide(trouble) is fallback
    assert attrs.evolve(patience, options=FAIL).decide(trouble) is fail


def test_of_several_troubles_the_one_that_may_pass_counts():
    one = Trouble(TroubleKind.NEVER, "too large", "limits", ("a",))
    two = Trouble(TroubleKind.BUSY, "full", "refused", ("b",))
    assert combined([one, two]) == Trouble(
        TroubleKind.BUSY, "too large; full", "refused", ("a", "b")
    )
