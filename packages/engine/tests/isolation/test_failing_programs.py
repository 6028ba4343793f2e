"""Programs that fail leave nothing behind: the rest does what it does without them."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_engine.execution import engine as engine_module
from forebay_testing.backends.failing import UNLIMITED
from forebay_testing.backends.machine import LATE
from forebay_testing.backends.search import fresh_seed
from forebay_testing.backends.subject import ENGINES, memory_storage
from forebay_testing.late_reads import late_backend

from ..execution.program_model import fails, no_cells
from ..execution.program_rows import (
    KEYS,
    STATES,
    ProgramFunction,
    all_contents,
    batches_of,
    read_all,
)
from ..subjects import OnBoth

FAILING_BATCHES = batches_of(st.tuples(st.just("fail")))


class TestFailingPrograms(OnBoth):
    examples = 13

    @pytest.mark.long
    @pytest.mark.filterwarnings("ignore:.*(mixes asynchronous|were never awaited)")
    def test_programs_that_fail_leave_nothing_behind(
        self, backend_class, new_job, search, monkeypatch
    ):
        # Writes are handed over after every chunk, also in the middle of records.
        monkeypatch.setattr(engine_module, "SPILL_CELLS", -1)

        @search.limits(self.examples)
        @search.seeded
        @given(batches=FAILING_BATCHES, engine=st.sampled_from(sorted(ENGINES)), late=LATE)
        def histories(batches, engine, late):
            limits = attrs.evolve(ENGINES[engine], page_size=128)
            job = new_job(*STATES, settings=limits, storage=memory_storage(), error_rows=UNLIMITED)
            if late is not None:
                job.backend_class = late_backend(backend_class, late)
            cells = {key: no_cells() for key in KEYS}
            for programs, is_async in batches:
                rows = [(key, n, program) for n, (key, program) in enumerate(programs)]
                emitted = job.run(_Emitting.of(is_async=is_async), rows)
                failed = {number for key, number, one in rows if fails(cells[key], one)}
                found = {number for number in emitted if isinstance(number, int)}
                assert found == {number for _, number, _ in rows} - failed
                assert len(emitted) == len(rows)
                job.restart()
            assert read_all(job) == [all_contents(cells[key]) for key in KEYS]

        histories()


@pytest.mark.slow
@pytest.mark.timeout(900)
class TestSearch(TestFailingPrograms):
    """Search among new examples."""

    example_seed = fresh_seed()
    example_factor = 20


class _Emitting(ProgramFunction):
    """Carries out programs; emits their numbers."""

    @staticmethod
    def of(*, is_async):
        return (_EmittingAsync if is_async else _Emitting)({})

    def process_element(self, row, ctx):
        ctx.collect(row[1])
        return self.start(row, ctx)


class _EmittingAsync(_Emitting):
    async def process_element(self, row, ctx):
        ctx.collect(row[1])
        returned = self.start(row, ctx)
        if returned is not None:
            await returned
