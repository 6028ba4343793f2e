"""Configurations of TTL that are refused, and when."""

from __future__ import annotations

from datetime import timedelta

import pytest

from forebay_state_api.errors import StateMigrationError
from forebay_state_api.job.ttl import CleanupInBackground, CleanupOnRead, StateTtlConfig
from forebay_testing.backends.ttl import READS, TTL, WRITES, states_with

from ..subjects import OnReference


class TestDeclarations(OnReference):
    @pytest.mark.parametrize("ttl", [timedelta(0), timedelta(seconds=-1)])
    def test_a_ttl_is_positive(self, ttl):
        with pytest.raises(ValueError, match="positive"):
            StateTtlConfig(ttl)

    @pytest.mark.parametrize("position", range(6), ids=["v", "l", "m", "r", "a", "s"])
    @pytest.mark.parametrize("before", ["with", "without"])
    def test_switching_ttl_on_or_off(self, new_job, position, before):
        on = states_with(StateTtlConfig(TTL))[position]
        off = states_with(StateTtlConfig(TTL))[position]
        off.ttl = None
        first, second = (on, off) if before == "with" else (off, on)
        job = new_job(first)
        job.do("k", WRITES[position])
        job.descriptors = [second]
        job.restart()
        with pytest.raises(StateMigrationError, match=f"'{on.name}'.*TTL"):
            job.do("k", READS[position])

    def test_the_default_is_on_read_and_in_the_background(self):
        assert StateTtlConfig(TTL).cleanup == (CleanupOnRead(), CleanupInBackground())
