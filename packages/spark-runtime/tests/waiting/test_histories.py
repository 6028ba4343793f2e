"""Random latencies, failures, time limits and settings, with the outcomes that must hold."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay_state_api.calls.errors import RetryLaterError
from forebay_state_api.calls.policies import Batch, Rate, Retry

TRY_TIMEOUT = 5.0
RETRIES = 2


class Action(NamedTuple):
    """One try of a row: after a time it answers, fails, or asks for a later call."""

    latency: float
    kind: str


actions = st.builds(
    Action,
    # Far from the limit, at it, and close to it.
    st.sampled_from([0.0, 0.5, 1.0, 4.999, 5.0, 5.001, 60.0]),
    st.sampled_from(["answer", "answer", "answer", "fail", "later", "stubborn"]),
)
histories = st.lists(st.lists(actions, max_size=4), max_size=40)

policies = st.fixed_dictionaries(
    {
        "capacity": st.integers(1, 12),
        "buffer": st.sampled_from([0, 1, 5, 10_000]),
        "ordered": st.booleans(),
        "hedge": st.sampled_from([None, None, 0.7]),
        "rate": st.sampled_from([None, None, Rate(4, burst=3)]),
    }
)
feeds = st.fixed_dictionaries(
    {"segment": st.integers(1, 15), "gap": st.sampled_from([0.0, 0.0, 1.0, 30.0])}
)


class Player:
    """Plays the histories of the rows, and checks invariants at every moment."""

    def __init__(self, histories, capacity, hedged):
        self.histories = histories
        self.tries = [0] * len(histories)
        self.live = 0
        self.limit = capacity * 2 if hedged else capacity
        self.busy = set()
        self.keyed = False
        self.kept = True

    async def __call__(self, row, client):
        turn = self.tries[row]
        self.tries[row] += 1
        history = self.histories[row]
        action = history[turn] if turn < len(history) else Action(1.0, "answer")
        self.live += 1
        self.kept = self.kept and self.live <= self.limit
        if self.keyed:
            self.kept = self.kept and row % 3 not in self.busy
            self.busy.add(row % 3)
        try:
            return await self.play(row, action)
        finally:
            self.busy.discard(row % 3)
            self.live -= 1

    async def play(self, row, action):
        try:
            await asyncio.sleep(action.latency)
        except asyncio.CancelledError:
            if action.kind == "stubborn":
                return "late"
            raise
        if action.kind == "fail":
            raise OSError("told to")
        if action.kind == "later":
            raise RetryLaterError(2)
        return row


class Batched:
    """Plays the histories of several rows in one call."""

    def __init__(self, player):
        self.player = player

    async def __call__(self, rows, client):
        return await asyncio.gather(
            *(self.player(row, client) for row in rows), return_exceptions=True
        )


def failed(row, error, tries):
    return ("failed", row)


def row_of(answer):
    return answer[1] if isinstance(answer, tuple) else answer


def possible(history, timeout):
    """Return whether a row with this history may answer, and may fail, without limits."""
    failures = 0
    for action in [*history, Action(1.0, "answer")]:
        if abs(action.latency - TRY_TIMEOUT) < 0.01:
            return True, True  # a race: both are correct
        late = action.latency > TRY_TIMEOUT
        if action.kind in ("answer", "stubborn") and not late:
            return True, False
        failures += late or action.kind != "later"
        if failures > RETRIES:
            return False, True
    raise AssertionError


def check(driven, player, history, policy, *, exact):
    assert driven.error is None
    assert player.live == driven.left == 0
    rows = [row_of(answer) for answer in driven.out]
    assert sorted(rows) == list(range(len(history)))
    if policy["ordered"]:
        assert rows == list(range(len(history)))
    assert driven.engine.in_flight == driven.engine.blocked == 0
    assert driven.counts.rows == len(history)
    if exact:
        for answer in driven.out:
            may_answer, may_fail = possible(history[row_of(answer)], None)
            assert may_fail if isinstance(answer, tuple) else may_answer


quickly = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@quickly
@given(
    history=histories, policy=policies, input_queue=feeds, timeout=st.sampled_from([3.0, 12.0, 1e6])
)
def test_every_row_has_one_outcome_and_it_is_its_own(drive, history, policy, input_queue, timeout):
    player = Player(history, policy["capacity"], policy["hedge"])
    retry = Retry(RETRIES, 0.3, multiplier=2)
    driven = drive(
        player,
        range(len(history)),
        **{**policy, **input_queue, "try_timeout": TRY_TIMEOUT, "timeout": timeout, "retry": retry},
        on_error=failed,
    )
    assert player.kept
    exact = timeout == 1e6 and policy["hedge"] is None
    check(driven, player, history, policy, exact=exact)


@quickly
@given(history=histories, policy=policies, input_queue=feeds)
def test_every_row_of_a_key_has_its_turn(drive, history, policy, input_queue):
    policy = {**policy, "hedge": None}
    player = Player(history, policy["capacity"], hedged=False)
    player.keyed = True
    driven = drive(
        player,
        range(len(history)),
        keys=lambda row: row % 3,
        **{**policy, **input_queue, "try_timeout": TRY_TIMEOUT, "timeout": 1e6},
        retry=Retry(RETRIES, 0.3),
        on_error=failed,
    )
    assert player.kept
    check(driven, player, history, policy, exact=True)


@pytest.mark.long
@quickly
@given(
    history=histories,
    policy=policies,
    input_queue=feeds,
    size=st.integers(1, 9),
    within=st.sampled_from([0.0, 0.5, 5.0]),
)
def test_every_row_of_a_batch_has_one_outcome(drive, history, policy, input_queue, size, within):
    player = Player(history, 10**6, hedged=False)
    driven = drive(
        Batched(player),
        range(len(history)),
        **{**policy, **input_queue, "try_timeout": TRY_TIMEOUT, "timeout": 50.0},
        retry=Retry(RETRIES, 0.3),
        batch=Batch(size, within),
        on_error=failed,
    )
    check(driven, player, history, policy, exact=False)


@quickly
@given(history=histories, policy=policies, input_queue=feeds)
def test_without_on_error_a_failure_is_raised_and_what_went_out_is_right(
    drive, history, policy, input_queue
):
    player = Player(history, policy["capacity"], policy["hedge"])
    driven = drive(player, range(len(history)), **policy, **input_queue)
    assert player.live == driven.left == 0
    rows = [row_of(answer) for answer in driven.out]
    assert len(set(rows)) == len(rows)
    if policy["ordered"]:
        assert rows == list(range(len(rows)))
    if driven.error is None:
        assert len(rows) == len(history)
