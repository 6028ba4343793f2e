"""Reports of the kit's failures: the broken promise, and the history that shows it."""

from __future__ import annotations

import inspect
from collections.abc import Generator, Iterable
from datetime import timedelta
from typing import Any, Final

import attrs
import pytest

from forebay_state_api.contract.backend import StateBackend
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_testing.job import KeyedJob
from forebay_testing.scripts import Script

JOBS: Final = pytest.StashKey[list["TracedJob"]]()
"""The jobs that a test has made."""
SEED: Final = pytest.StashKey[int]()
"""The seed of its examples, if they are fresh ones."""
ADVICE: Final = pytest.StashKey[str]()
"""The advice that is printed with a test's failure."""

_NAME: Final = "forebay-kit"
_LINES: Final = 30
_WIDTH: Final = 300


@attrs.define
class Event:
    """A micro-batch or a restart of a job."""

    what: str
    rows: list[Any] = attrs.field(factory=list)
    now_us: int = 0
    outcome: Any = None


class TracedJob(KeyedJob):
    """A `KeyedJob` that records its history."""

    def __init__(
        self, backend_class: type[StateBackend], storage: ObjectStorage, **more: Any
    ) -> None:
        """Take the arguments of `KeyedJob`."""
        super().__init__(backend_class, storage, **more)
        self.place = storage
        self.history: list[Event] = []

    def run(
        self, function: Any, rows: Iterable[Any], other: Iterable[Any] = (), *, crash: bool = False
    ) -> list[Any]:
        rows, other = list(rows), list(other)
        what = f"batch {self.batch_id}{', killed before its commit' if crash else ''}"
        event = Event(f"{what}:{_called(function, rows)}", [*rows, *other], self.clock.now_us)
        self.history.append(event)
        try:
            event.outcome = found = super().run(function, rows, other, crash=crash)
        except BaseException as error:
            event.outcome = f"{type(error).__name__}: {error}"
            raise
        return found

    def restart(self, **how: Any) -> None:
        super().restart(**how)
        changes = ", ".join(f"{name}={value}" for name, value in how.items())
        self.history.append(Event(f"restart({changes})", now_us=self.clock.now_us))

    def lines(self) -> list[str]:
        """The history, a line for each event."""
        kinds = ", ".join(f"{one.name}: {one.kind}" for one in self.descriptors)
        style = self.style.value
        lines = [f"{self.operator}, {style}, parallelism {self.parallelism}, states {kinds}"]
        before = self.history[0].now_us if self.history else 0
        for event in self.history:
            later = "" if event.now_us == before else f" {_later(event.now_us - before)}"
            before = event.now_us
            rows = "; ".join(map(_row, event.rows))
            gave = "" if event.outcome is None else f" -> {event.outcome}"
            line = f"{event.what}{later} {rows}".rstrip() + gave
            lines.append(_short(line.replace("\n", " ")))
        left_out = len(lines) - _LINES
        if left_out > 0:
            lines[1 : 1 + left_out] = [f"({left_out} before)"]
        return lines


class Reporter:
    """The plugin that adds promise and history to the report of a failed test."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Extend the report; pytest calls this for each phase of each test."""
        report = yield
        jobs = item.stash.get(JOBS, None)
        if report.failed and jobs is not None:
            report.sections.append(("promise", promise_of(item)))
            if jobs:
                report.sections.append(("history", "\n".join(_histories(jobs))))
            if (seed := item.stash.get(SEED, None)) is not None:
                advice = f"set example_seed = {seed} on the class to draw the same examples again"
                report.sections.append(("repeat", advice))
            if (advised := item.stash.get(ADVICE, None)) is not None:
                report.sections.append(("advice", advised))
        return report


def register(config: pytest.Config) -> None:
    """Add the broken promise to the failures of this session."""
    if not config.pluginmanager.has_plugin(_NAME):
        config.pluginmanager.register(Reporter(), _NAME)


def promise_of(item: Any) -> str:
    """Return the promise of a kit test in words, and the part of the contract it belongs to."""
    name = item.originalname
    part = next(one for one in inspect.getmro(item.cls) if name in vars(one))
    about = (part.__doc__ or "").partition("\n")[0]
    said = name.removeprefix("test_").replace("_", " ")
    return f"{said} {item.name[len(name) :]}\n({part.__name__}: {about})"


def _histories(jobs: list[TracedJob]) -> list[str]:
    """Return the histories of the last example: of the jobs on the storage of the last one."""
    last = jobs[-1].place
    return [line for job in jobs if job.place is last for line in job.lines()]


def _called(function: Any, rows: list[Any]) -> str:
    return "" if any(isinstance(row, Script) for row in rows) else f" {type(function).__name__}"


def _row(row: Any) -> str:
    if not isinstance(row, Script):
        return repr(row)
    accesses = ", ".join(f"{name}({', '.join(map(repr, rest))})" for name, *rest in row.accesses)
    return f"{row.key!r}: {accesses}"


def _later(us: int) -> str:
    return f"({'after ' if us > 0 else 'back '}{abs(timedelta(microseconds=us))})"


def _short(line: str) -> str:
    return line if len(line) <= _WIDTH else f"{line[:_WIDTH]} ..."
