"""The rules that a state's TTL passes to the backend's compaction."""

from __future__ import annotations

from datetime import timedelta

import pytest

from forebay_state_api import (
    CleanupInCompaction,
    CleanupOnRead,
    KeyedProcessFunction,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.contract.backend import Capability
from forebay_state_api.contract.expiry import Expiry
from forebay_testing.reference import ReferenceBackend

TTL = timedelta(seconds=5)


class Compacting(ReferenceBackend):
    """Says that it compacts, and notes which tables it is asked for."""

    capabilities = ReferenceBackend.capabilities | Capability.CLEANUP_IN_COMPACTION

    def table(self, spec):
        self.asked.append(spec)
        return super().table(spec)


class Keeping(KeyedProcessFunction):
    def __init__(self, *cleanup):
        self.ttl = StateTtlConfig(TTL, cleanup=cleanup)

    def open(self, context):
        self.value = context.get_state(ValueStateDescriptor("v", int, ttl=self.ttl))

    def process_element(self, row, ctx):
        self.value.update(row[1])


@pytest.mark.parametrize("every", [0, -1, -1000])
def test_a_clock_that_is_never_read_is_refused(every):
    with pytest.raises(ValueError, match=f"clock_every must be positive, not {every}"):
        CleanupInCompaction(clock_every=every)


@pytest.mark.parametrize(
    ("cleanup", "ttl_us", "every"),
    [
        ([], None, None),
        ([CleanupOnRead()], None, None),
        ([CleanupInCompaction()], 5_000_000, None),
        ([CleanupOnRead(), CleanupInCompaction(clock_every=1)], 5_000_000, 1),
        ([CleanupInCompaction(clock_every=1000), CleanupOnRead()], 5_000_000, 1000),
    ],
)
def test_the_backend_is_told_ttl_and_clock(new_job, monkeypatch, cleanup, ttl_us, every):
    asked = []
    monkeypatch.setattr(Compacting, "asked", asked, raising=False)
    new_job(Compacting).run(Keeping(*cleanup), [("a", 1)])
    (spec,) = asked
    expiry = None if ttl_us is None else Expiry(ttl_us)
    assert (spec.compaction_expiry, spec.compaction_clock_every) == (expiry, every)
