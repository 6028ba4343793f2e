"""pytest plugin: the fixture ``harness``, once for each installed backend.

It is loaded wherever forebay-testing is installed. After a run of a conformance kit it lists what
the subjects do not claim.
``harness(fn, key_by=…, …)`` makes a `FunctionHarness` on the backend at hand and closes it after
the test. ``pytest --forebay-backend=heap`` (repeatable) runs the tests on the named backends only,
``pytest --forebay-late=1`` with ``late_answers=1``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Protocol

import pytest

if TYPE_CHECKING:
    from forebay_testing.harness import FunctionHarness


NOT_CLAIMED: Final = "does not claim"
"""Reasons of skipped tests of the conformance kits have these words."""


class MakeHarness(Protocol):
    """The type of ``harness``: it takes the arguments of `FunctionHarness` except ``backend``."""

    def __call__(self, fn: Any, key_by: Any, **options: Any) -> FunctionHarness:
        """Make a harness that is closed after the test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--forebay-backend`` and ``--forebay-late``."""
    parser.addoption(
        "--forebay-backend",
        action="append",
        metavar="NAME",
        help="run tests that use the fixture 'harness' on this backend (default: all installed)",
    )
    parser.addoption(
        "--forebay-late",
        type=int,
        metavar="SEED",
        help="answer reads of the fixture 'harness' late, in an order that SEED decides",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that uses ``harness`` once for each backend."""
    if "forebay_backend" in metafunc.fixturenames:
        from forebay_state_api.plugins import plugins

        names = metafunc.config.getoption("--forebay-backend") or sorted(plugins().backends())
        metafunc.parametrize("forebay_backend", names, indirect=True)


@pytest.fixture
def forebay_backend(request: pytest.FixtureRequest) -> str:
    """Return the name of the backend in this run of the test."""
    name: str = request.param
    return name


@pytest.fixture
def harness(forebay_backend: str, request: pytest.FixtureRequest) -> Iterator[MakeHarness]:
    """Return a function that makes harnesses on the current backend."""
    made: list[FunctionHarness] = []
    late = request.config.getoption("--forebay-late")
    # If Spark is installed, use the harness that takes a schema.
    with_spark = find_spec("forebay_spark_runtime") is not None
    package = "forebay_spark_runtime.testing" if with_spark else "forebay_testing"
    harness_class = import_module(package).FunctionHarness

    def make(fn: Any, key_by: Any, **options: Any) -> FunctionHarness:
        options.setdefault("late_answers", late)
        made.append(harness_class(fn, key_by, backend=forebay_backend, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the promises of the conformance kits that were not tested, and why."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = [str(report.longrepr[-1]) for report in skipped if isinstance(report.longrepr, tuple)]
    counts = Counter(r.removeprefix("Skipped: ") for r in reasons if NOT_CLAIMED in r)
    if counts:
        terminalreporter.section("not claimed, and not tested")
        for reason, count in sorted(counts.items()):
            terminalreporter.line(f"{reason} ({count} {'tests' if count > 1 else 'test'})")
