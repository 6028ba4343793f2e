"""Every event in every state of a job and of a gateway, and what follows from the tables."""

from __future__ import annotations

import itertools

import attrs
import pytest

from forebay_compaction_ray.client.lifecycle import (
    Call,
    Event,
    Kind,
    Patience,
    Reach,
    State,
    Trouble,
    combined,
    next_reach,
    next_state,
)
from forebay_state_api.contract.compaction_service import CompactionPhase

E, S = Event, State
AT_GATEWAY = {
    E.QUEUED: S.QUEUED,
    E.RUNNING: S.RUNNING,
    E.WRITTEN: S.WRITTEN,
    E.VERDICT: S.JUDGED,
    E.TROUBLE: S.TROUBLED,
    E.WITHDRAWN: S.LOST,
}
EXPECTED = {
    S.ASKED: {**AT_GATEWAY, E.NOWHERE: S.UNKNOWN},
    S.OFFERED: {**AT_GATEWAY, E.HAND_BACK: S.LOST},
    S.QUEUED: AT_GATEWAY,
    S.RUNNING: AT_GATEWAY,
    S.JUDGED: {E.CONFIRMED: S.FAILED, E.TROUBLE: S.TROUBLED},
    S.WRITTEN: {
        E.INTACT: S.DONE,
        E.UNREAD: S.UNREAD,
        E.DAMAGED: S.LOST,
        E.GIVE_UP: S.FAILED,
        E.TROUBLE: S.TROUBLED,
    },
    S.TROUBLED: {
        E.AGAIN: S.OFFERED,
        E.FALL_BACK: S.LOCAL,
        E.GIVE_UP: S.FAILED,
        E.HAND_BACK: S.LOST,
        E.TROUBLE: S.TROUBLED,
    },
    S.LOCAL: {E.DONE_HERE: S.DONE, E.FAILED_HERE: S.FAILED, E.STOPPED_HERE: S.ABORTED},
}
ENDS = [S.DONE, S.UNREAD, S.FAILED, S.LOST, S.UNKNOWN, S.ABORTED, S.LEFT]


@pytest.mark.parametrize("state", State)
def test_every_event_in_every_state(state):
    for event in Event:
        if state in ENDS:
            assert next_state(state, event) is state
        elif event in (E.UNWANTED, E.LEAVE):
            assert next_state(state, event) is (S.ABORTED if event is E.UNWANTED else S.LEFT)
        elif event in EXPECTED[state]:
            assert next_state(state, event) is EXPECTED[state][event]
        else:
            with pytest.raises(ValueError, match=state.value):
                next_state(state, event)


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


def test_without_giving_up_only_the_local_compaction_can_fail_a_job():
    """`GIVE_UP` and `CONFIRMED` never happen with the strategy `fallback`: see below."""
    remote = reachable(S.OFFERED, without=(E.GIVE_UP, E.CONFIRMED, E.FALL_BACK))
    assert S.FAILED not in remote
    assert S.FAILED in reachable(S.LOCAL)


def test_every_call_in_every_state_of_a_gateway():
    expected = {
        (Reach.UP, Call.ANSWERED): Reach.UP,
        (Reach.UP, Call.SILENT): Reach.DOWN,
        (Reach.UP, Call.RESTED): Reach.UP,
        (Reach.DOWN, Call.ANSWERED): Reach.UP,
        (Reach.DOWN, Call.SILENT): Reach.DOWN,
        (Reach.DOWN, Call.RESTED): Reach.PROBED,
        (Reach.PROBED, Call.ANSWERED): Reach.UP,
        (Reach.PROBED, Call.SILENT): Reach.DOWN,
        (Reach.PROBED, Call.RESTED): Reach.PROBED,
    }
    found = {pair: next_reach(*pair) for pair in itertools.product(Reach, Call)}
    assert found == expected


PATIENCE = Patience(fall_back=True, retries=2, queue_timeout_s=30.0, request_timeout_s=300.0)
FRESH, BEGUN_OFTEN = {"tries": 1}, {"tries": 3}
WAITED = {"waited_s": 30.0, "idle_s": 30.0}
OVERDUE = {"waited_s": 300.0}


@pytest.mark.parametrize(
    ("kind", "spent", "fallback", "fail"),
    [
        (Kind.STAYS, FRESH, E.FALL_BACK, E.FALL_BACK),
        (Kind.NEVER, FRESH, E.FALL_BACK, E.GIVE_UP),
        (Kind.LATE, FRESH, E.FALL_BACK, E.GIVE_UP),
        (Kind.AWAY, FRESH, E.FALL_BACK, E.AGAIN),
        (Kind.AWAY, WAITED, E.FALL_BACK, E.GIVE_UP),
        (Kind.BUSY, FRESH, E.AGAIN, E.AGAIN),
        (Kind.BUSY, WAITED, E.FALL_BACK, E.GIVE_UP),
        (Kind.BUSY, OVERDUE, E.FALL_BACK, E.GIVE_UP),
        (Kind.FAILED, FRESH, E.AGAIN, E.AGAIN),
        (Kind.FAILED, WAITED, E.AGAIN, E.AGAIN),
        (Kind.FAILED, BEGUN_OFTEN, E.FALL_BACK, E.AGAIN),
        (Kind.FAILED, {**BEGUN_OFTEN, **WAITED}, E.FALL_BACK, E.GIVE_UP),
        (Kind.FAILED, OVERDUE, E.FALL_BACK, E.GIVE_UP),
    ],
)
def test_what_becomes_of_a_job_that_nobody_has(kind, spent, fallback, fail):
    patience = attrs.evolve(PATIENCE, **spent)
    trouble = Trouble(kind, "why")
    assert patience.decide(trouble) is fallback
    assert attrs.evolve(patience, fall_back=False).decide(trouble) is fail


def test_of_several_troubles_the_one_that_may_pass_counts():
    one = Trouble(Kind.NEVER, "too large", "limits", where=("a",))
    two = Trouble(Kind.BUSY, "full", "refused", 2.0, where=("b",))
    assert combined([one, two]) == Trouble(Kind.BUSY, "too large; full", "refused", 2.0, ("a", "b"))
