"""The size of TTL's timestamps in files."""

from __future__ import annotations

from datetime import timedelta

import pytest

from forebay_state_api import StateTtlConfig, ValueStateDescriptor
from forebay_state_api.plugins import plugins
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing import KeyedJob

pytestmark = pytest.mark.long


@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_a_time_takes_eight_bytes_at_most(backend):
    sizes = []
    for ttl in None, StateTtlConfig(timedelta(hours=1)):
        state = ValueStateDescriptor("v", int, ttl=ttl)
        storage = MemoryStorage(f"memory://{backend}-ttl-{ttl is not None}")
        job = KeyedJob(plugins().backend(backend), storage, descriptors=[state], key_type=str)
        job.scripts([(f"k{n}", [("v.update", n)]) for n in range(3000)])
        sizes.append(job.reports[0].bytes_total)
    assert sizes[1] - sizes[0] <= 8 * 3000 + 256
