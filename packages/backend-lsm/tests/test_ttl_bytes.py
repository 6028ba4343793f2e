"""What TTL costs in files."""

from __future__ import annotations

from datetime import timedelta

from forebay_backend_lsm.backend import LsmBackend
from forebay_state_api import StateTtlConfig, ValueStateDescriptor
from forebay_state_api.storage import MemoryStorage
from forebay_state_api.testing import KeyedJob


def test_a_time_takes_eight_bytes_at_most():
    sizes = []
    for ttl in None, StateTtlConfig(timedelta(hours=1)):
        state = ValueStateDescriptor("v", int, ttl=ttl)
        storage = MemoryStorage(f"memory://lsm-ttl-{ttl is not None}")
        job = KeyedJob(LsmBackend, storage, descriptors=[state], key_type=str)
        job.scripts([(f"k{n}", [("v.update", n)]) for n in range(3000)])
        sizes.append(job.reports[0].bytes_total)
    assert sizes[1] - sizes[0] <= 8 * 3000 + 256
