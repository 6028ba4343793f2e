"""Random programs of watermark, silence and the bound on the future, against a plain model.

Programs have rows of one input or two, times that stop, leap or go back, crashes of all subtasks
or of some, restarts, rescales, and runs that go on from an older version. Every subtask begins with
the watermark of the model, and the counts of late rows and of rows that are too far ahead are its.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_engine.timers.watermark import ALWAYS, EPOCH, MICROSECOND
from forebay_state_api import KeyedCoProcessFunction, KeyedProcessFunction
from forebay_state_api.keys import key_group_of, key_group_range_of
from forebay_state_api.plugins import plugins
from forebay_testing import KeyedJob
from forebay_testing.backends.subject import memory_storage

START = datetime(2024, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
GROUPS = 4
KEYS = "abcdefgh"
NO_ROWS = ((), ())


class Row(NamedTuple):
    key: str
    at: datetime | None


class One(KeyedProcessFunction):
    def process_element(self, row, ctx):
        return []


class Two(KeyedCoProcessFunction):
    process_element1 = process_element2 = One.process_element


@attrs.frozen
class Known:
    """The knowledge of the model after a version; times in seconds since `START`."""

    watermark: float = float("-inf")
    marks: tuple[float, ...] = ()
    silent: tuple[float, ...] = ()
    seen: tuple[tuple[float, ...], ...] = ()
    """The latest event time of the subtask of each key group, for each input."""
    now: float | None = None
    run: int | None = None


class Model:
    """The watermark as the pages define it, worked out after each micro-batch."""

    def __init__(self, inputs, lateness, idle_after, ahead):
        self.inputs, self.lateness, self.idle_after, self.ahead = (
            inputs,
            lateness,
            idle_after,
            ahead,
        )
        nothing = float("-inf")
        seen = ((nothing,) * GROUPS,) * inputs
        self.versions = [Known(marks=(nothing,) * inputs, silent=(0,) * inputs, seen=seen)]

    def counts(self, version, now, rows):
        """Return the late rows of a micro-batch, and those that are too far ahead."""
        times = [at for side in rows[: self.inputs] for _, at in side if at is not None]
        watermark = self.versions[version].watermark
        return sum(at <= watermark for at in times), sum(self.is_ahead(at, now) for at in times)

    def is_ahead(self, at, now):
        return self.ahead is not None and at > now + self.ahead

    def commit(self, version, now, rows, run, parallelism):
        """Make the version after ``version``; later ones are forgotten."""
        known = self.versions[version]
        step = now - known.now if known.run == run else 0
        step = min(max(step, 0), self.idle_after or 0)
        marks, silent, seen, of_batch = [], [], [], []
        for side, given_rows in enumerate(rows[: self.inputs]):
            times = [(key, at) for key, at in given_rows if at is not None]
            usual = [(key, at) for key, at in times if not self.is_ahead(at, now)]
            latest, of_subtasks = self.seen_by(known.seen[side], usual, parallelism)
            seen.append(latest)
            found = [at - self.lateness for at in of_subtasks]
            of_batch += found
            marks.append(max([known.marks[side], *([min(found)] if found else [])]))
            silent.append(0 if times else known.silent[side] + step)
        watermark = max(known.watermark, self.watermark(marks, silent, of_batch))
        made = Known(watermark, tuple(marks), tuple(silent), tuple(seen), now, run)
        self.versions = [*self.versions[: version + 1], made]

    def seen_by(self, seen, rows, parallelism):
        """Return what each key group's subtask has ever seen, and that of those with rows."""
        latest, of_subtasks = list(seen), []
        for subtask in range(parallelism):
            groups = key_group_range_of(subtask, parallelism, GROUPS)
            own = [at for key, at in rows if key_group_of(key, GROUPS) in groups]
            most = max([*own, *(seen[group] for group in groups)])
            for group in groups:
                latest[group] = most
            of_subtasks += [most] if own else []
        return tuple(latest), of_subtasks

    def watermark(self, marks, silent, of_batch):
        if self.idle_after is None:
            return min(of_batch, default=float("-inf"))
        holding = [m for m, s in zip(marks, silent, strict=True) if s < self.idle_after]
        if holding:
            return min(holding)
        pairs = [(s, m) for m, s in zip(marks, silent, strict=True) if m != float("-inf")]
        return sum(min(pairs)) if pairs else float("-inf")


class Program:
    """Runs micro-batches of a job and of the model."""

    def __init__(self, backend, inputs, lateness, idle_after, ahead):
        self.model = Model(inputs, lateness, idle_after, ahead)
        self.function = One() if inputs == 1 else Two()
        self.job = KeyedJob(
            plugins().backend(backend),
            memory_storage(),
            parallelism=2,
            max_parallelism=GROUPS,
            event_time=lambda row: row.at,
            lateness=lateness * SECOND,
            idle_after_us=None if idle_after is None else idle_after * 10**6,
            max_ahead_us=None if ahead is None else ahead * 10**6,
        )
        self.run_number = 0
        self.now = 0

    def restart(self, parallelism=None, version=None):
        self.run_number += 1
        self.job.restart(parallelism=parallelism, batch_id=version)

    def batch(self, seconds, rows, trouble):
        self.now += seconds
        self.job.clock.set(START + self.now * SECOND)
        if trouble == "crash":
            self.ran(rows, crash=True)
        elif trouble is not None:
            self.killed_after(trouble, rows)
        version = self.job.batch_id
        self.ran(rows)
        late = sum(report.metrics.late_rows for report in self.job.reports)
        ahead = sum(report.metrics.rows_ahead for report in self.job.reports)
        assert (late, ahead) == self.model.counts(version, self.now, rows)
        self.model.commit(version, self.now, rows, self.run_number, self.job.parallelism)

    def ran(self, rows, **how):
        self.job.process(self.function, self.records(rows), begun=self.check, **how)

    def killed_after(self, subtasks, rows):
        """Let some subtasks commit, and the driver die; the next run repeats the micro-batch."""
        for number, mine in enumerate(self.job._routed(self.records(rows))):
            with self.job.subtask(self.function, number) as running:
                self.check(running)
                self.job.feed(running, mine)
                if number < subtasks:
                    running.commit()
        self.restart()

    def records(self, rows):
        found = []
        for side, some in enumerate(rows[: self.model.inputs]):
            given_rows = [Row(key, None if at is None else START + at * SECOND) for key, at in some]
            found += self.job.keyed(given_rows, side)
        return found

    def check(self, running):
        expected = self.model.versions[self.job.batch_id].watermark
        found = running.watermark_us
        if found == ALWAYS:
            assert expected == float("-inf")
        else:
            assert EPOCH + found * MICROSECOND == START + expected * SECOND


class Steps:
    """Draws the steps of a program; most rows are near the clock, and times of silence are long."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def run(self, program):
        pick = self.random
        for _ in range(pick.randrange(6, 14)):
            step = pick.choices([self.batch, self.silence, self.restart, self.back], [8, 6, 2, 1])
            step[0](program)
        program.batch(1, NO_ROWS, None)

    def batch(self, program):
        seconds = self.random.choice([0, 1, 2, 3, 5, 5, 8, 40, -3])
        trouble = self.random.choice([*[None] * 6, "crash", 0, 1])
        program.batch(seconds, (self.rows(program), self.rows(program)), trouble)

    def rows(self, program):
        count = self.random.choice([0, 1, 2, 3])
        return [(self.random.choice(KEYS), self.time(program.now)) for _ in range(count)]

    def time(self, now):
        if not self.random.randrange(6):
            return None
        return max(now + self.random.choice([-40, -9, -4, -2, 0, 1, 3, 7, 11, 90]), 0)

    def silence(self, program):
        seconds = self.random.choice([1, 2, 3, 5, 9])
        for _ in range(self.random.randrange(1, 6)):
            program.batch(seconds, NO_ROWS, None)

    def restart(self, program):
        program.restart(parallelism=self.random.choice([None, 1, 2, 3, GROUPS]))

    def back(self, program):
        version = program.job.batch_id - self.random.randrange(1, 5)
        program.restart(version=max(version, 0))


@pytest.mark.long
@pytest.mark.parametrize("backend", ["heap", "lsm"])
@settings(max_examples=settings().max_examples // 3)
@given(
    seed=st.integers(0, 1 << 32),
    inputs=st.sampled_from([1, 2, 2]),
    lateness=st.sampled_from([0, 4]),
    idle_after=st.sampled_from([6, 6, 12, None]),
    ahead=st.sampled_from([None, 10]),
)
def test_random_programs_do_what_a_model_does(backend, seed, inputs, lateness, idle_after, ahead):
    program = Program(backend, inputs, lateness, idle_after, ahead)
    Steps(seed).run(program)
