"""A state's TTL settings for compaction reach the job."""

from __future__ import annotations

import attrs
import pytest

from forebay_state_api.contract.expiry import Expiry
from forebay_testing.compaction import ImmediateCompaction


@pytest.mark.parametrize(("ttl_us", "every"), [(None, None), (1_000, None), (1_000, 50)])
def test_the_job_names_ttl_and_clock(kit, new_operator, monkeypatch, ttl_us, every):
    operator = new_operator(max_runs=3)
    service = ImmediateCompaction(operator.storage, hold=True)
    opening = type(operator).opening
    monkeypatch.setattr(
        type(operator), "opening", lambda self, **given: opening(self, compaction=service, **given)
    )
    expiry = None if ttl_us is None else Expiry(ttl_us)
    spec = attrs.evolve(kit.spec(ttl=True), compaction_expiry=expiry, compaction_clock_every=every)
    while not service.submitted:
        assert operator.version < 10
        operator.commit((spec, kit.points({"a": (operator.version, 1)})))
    options = service.submitted[0].options
    assert options["ttl"] == ({} if ttl_us is None else {"s": ttl_us})
    assert options["clock_every"] == ({} if every is None else {"s": every})
