"""Histories of states with TTL: they are the same in whatever style a function is written.

One job runs every batch synchronously, the other one in the styles and with the limits that were
drawn, perhaps on a backend that answers late. Both must read the same, and store the same times.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_state_api.job.ttl import CleanupOnRead, StateTtlConfig, StateVisibility, UpdateType
from forebay_testing.backends.machine import CALLS, ENGINES, KEYS, LATE, states_of_accesses
from forebay_testing.backends.search import fresh_seed
from forebay_testing.backends.subject import SECOND, memory_storage
from forebay_testing.clock import ManualClock
from forebay_testing.late_reads import late_backend
from forebay_testing.scripts import Style

from ..subjects import OnBoth

NAMESPACES = [None, "w1", "w2"]
BATCHES = st.lists(
    st.tuples(st.integers(0, 4), CALLS, st.sampled_from(Style), ENGINES, st.booleans()),
    min_size=1,
    max_size=8,
)
CONFIGS = st.builds(
    StateTtlConfig,
    ttl=st.just(5 * SECOND),
    update_type=st.sampled_from(UpdateType),
    visibility=st.sampled_from(StateVisibility),
    cleanup=st.sampled_from([(), (CleanupOnRead(),)]),
)


class TestHistories(OnBoth):
    examples = 8

    @pytest.fixture
    def pair(self, new_job):
        """Return two identical jobs on one clock."""

        def make(config):
            clock = ManualClock()

            def one():
                return new_job(*states_of_accesses(config), storage=memory_storage(), clock=clock)

            return one(), one()

        return make

    @pytest.mark.long
    # Some accesses are synchronous, and some end a merge that is under way.
    @pytest.mark.filterwarnings("ignore:.*mixes asynchronous state accesses")
    def test_all_styles_agree_about_what_lives(self, pair, search):
        @search.limits(self.examples)
        @search.seeded
        @given(config=CONFIGS, batches=BATCHES, late=LATE)
        def histories(config, batches, late):
            plain, other = pair(config)
            plain.style = Style.SYNCHRONOUS
            if late is not None:
                other.backend_class = late_backend(other.backend_class, late)
            for seconds, calls, style, engine, restarts in batches:
                plain.clock.advance(seconds * SECOND)
                other.style, other.settings = style, engine
                if restarts:
                    other.restart()
                assert other.scripts(calls) == plain.scripts(calls)
            assert _stored(other) == _stored(plain)

        histories()


@pytest.mark.slow
@pytest.mark.timeout(900)
class TestSearch(TestHistories):
    """Search among new examples."""

    example_seed = fresh_seed()
    example_factor = 20


def _stored(job):
    return [job.peek_all(KEYS, namespace) for namespace in NAMESPACES]
