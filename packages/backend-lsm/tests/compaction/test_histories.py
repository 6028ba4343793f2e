"""Any history of commits, jobs, processes and rescales reads like a dictionary."""

from __future__ import annotations

import copy

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forebay_backend_lsm.layers import layers_of
from forebay_backend_lsm.options import LsmOptions
from forebay_state_api.contract.compaction_job import CompactionJob
from forebay_state_api.keys import KeyGroupRange
from forebay_testing import ImmediateCompaction

from .chain import MINUTE_US, Chain, Committed
from .toy import Cells

KEYS = [(group, f"k{group}") for group in range(8)]
WRITES = st.dictionaries(st.sampled_from(KEYS), st.none() | st.integers(0, 99), max_size=4)
RULES = LsmOptions(max_runs=4, target_file_bytes=3)


class Histories(RuleBasedStateMachine):
    """Jobs run when the machine decides: at once, late, twice, or never."""

    def __init__(self) -> None:
        super().__init__()
        self.chain = Chain(RULES)
        self.model: Cells = {}
        self.jobs: list[tuple[ImmediateCompaction, CompactionJob]] = []
        self.kept: list[tuple[list[Committed], list[KeyGroupRange], Cells]] = []

    @rule(writes=WRITES, minutes=st.sampled_from([0, 1, 7, 30]))
    def commit(self, writes: Cells, minutes: int) -> None:
        self.chain.now_us += minutes * MINUTE_US
        self.chain.commit(writes)
        self.model.update(writes)
        self.model = {cell: value for cell, value in self.model.items() if value is not None}
        known = [job.id for _, job in self.jobs]
        new = [job for job in self.chain.service.submitted if job.id not in known]
        self.jobs += [(self.chain.service, job) for job in new]

    @rule(writes=WRITES)
    def lost_attempt(self, writes: Cells) -> None:
        """Do everything except the manifest; submit its jobs nevertheless, as a zombie does."""
        opened, _ = self.chain.attempt(writes)
        opened.installed()

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def run_job(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.jobs) - 1))
        service, job = self.jobs[index]
        service.run(job)

    @rule()
    def other_process(self) -> None:
        self.chain.other_process()

    @rule(parallelism=st.sampled_from([1, 2, 3]))
    def rescale(self, parallelism: int) -> None:
        self.chain.rescale(parallelism)

    @rule()
    def remember(self) -> None:
        self.kept.append((self.chain.newest, self.chain.ranges, copy.copy(self.model)))

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def go_back(self, data: st.DataObject) -> None:
        newest, ranges, model = data.draw(st.sampled_from(self.kept))
        self.chain.newest, self.chain.ranges, self.model = newest, ranges, copy.copy(model)

    @invariant()
    def content_is_the_models(self) -> None:
        assert self.chain.content() == self.model

    @invariant()
    def runs_are_bounded(self) -> None:
        for one in self.chain.newest:
            assert len(layers_of(one.files)) <= RULES.max_runs


Histories.TestCase.settings = settings(
    max_examples=settings().max_examples,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestHistories = pytest.mark.long(Histories.TestCase)
