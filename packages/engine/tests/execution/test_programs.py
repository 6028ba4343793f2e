"""Programs of a model, on backends that answer normally, or late and out of order."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_testing.backends.search import fresh_seed
from forebay_testing.backends.subject import ENGINES, memory_storage
from forebay_testing.late_reads import late_backend

from ..subjects import OnBoth
from .program_model import expected, no_cells
from .program_rows import (
    KEYS,
    STATES,
    AsyncProgramFunction,
    ProgramFunction,
    all_contents,
    batches_of,
    read_all,
)

BATCHES = batches_of()


class TestPrograms(OnBoth):
    examples = 14

    @pytest.mark.long
    @pytest.mark.filterwarnings("ignore:.*(mixes asynchronous|were never awaited)")
    def test_random_programs_do_what_the_model_does(self, backend_class, new_job, search):
        @search.limits(self.examples)
        @search.seeded
        @given(data=st.data(), batches=BATCHES, engine=st.sampled_from(sorted(ENGINES)))
        def histories(data, batches, engine):
            # The model knows no pages.
            limits = attrs.evolve(ENGINES[engine], page_size=128)
            job = new_job(*STATES, settings=limits, storage=memory_storage())
            if data.draw(st.booleans(), label="late"):
                job.backend_class = late_backend(backend_class, data.draw(st.integers(0, 99)))
            cells = {key: no_cells() for key in KEYS}
            for programs, is_async in batches:
                rows = [(key, n, program) for n, (key, program) in enumerate(programs)]
                logs = {}
                job.run((AsyncProgramFunction if is_async else ProgramFunction)(logs), rows)
                for key, number, program in rows:
                    wanted, _ = expected(cells[key], program)
                    assert logs[number] == wanted, (key, program)
                job.restart()
            assert read_all(job) == [all_contents(cells[key]) for key in KEYS]

        histories()


@pytest.mark.slow
@pytest.mark.timeout(900)
class TestSearch(TestPrograms):
    """Search among new examples."""

    example_seed = fresh_seed()
    example_factor = 20
