"""One run of the demo, from the flights to the check of the result."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import click
from pyspark.errors import StreamingQueryException

from forebay_spark_runtime.demo.check import Carried, departures, expected
from forebay_spark_runtime.demo.console import ConsoleProcess, require_console
from forebay_spark_runtime.demo.directory import DemoDirectory, default_directory
from forebay_spark_runtime.demo.flights import MONTHS, Flights, airlines, require_flights
from forebay_spark_runtime.demo.kill import Kill, Killer
from forebay_spark_runtime.demo.manifest_numbers import operator_storage, read_version
from forebay_spark_runtime.demo.screen import BatchSummary, Screen
from forebay_spark_runtime.demo.spark import DemoSpark, require_java
from forebay_spark_runtime.driver.failure import why
from forebay_state_api.errors import ForebayError

_LOOK_S: Final = 0.1
_KILLS: Final = 3


class DemoFailedError(ForebayError):
    """The query failed, or its result is wrong."""


@attrs.frozen
class DemoOptions:
    """The options of the command ``forebay demo``."""

    directory: Path | None
    fresh: bool = attrs.field(kw_only=True)
    parallelism: int = attrs.field(kw_only=True)
    kill: bool = attrs.field(kw_only=True)
    months: int | None = attrs.field(kw_only=True)
    console: bool = attrs.field(kw_only=True)


def run_demo(options: DemoOptions) -> None:
    """Run the demo once. Raises a `ForebayError` if something does not work."""
    require_java()
    require_flights()
    if options.console:
        require_console()
    directory = DemoDirectory(options.directory or default_directory())
    if options.fresh:
        directory.clear()
    screen = Screen()
    try:
        with _console(directory, options, screen):
            _DemoRun(directory, options, screen).go()
    except KeyboardInterrupt:
        screen.say("Interrupted. Committed months are kept: forebay demo continues from there.")
        raise click.Abort from None


@contextmanager
def _console(directory: DemoDirectory, options: DemoOptions, screen: Screen) -> Iterator[None]:
    """Show the console while the context lasts, and then until the viewer has seen enough."""
    if not options.console:
        yield
        return
    with ConsoleProcess(directory) as console:
        screen.watch(console.url)
        yield
        if sys.stdin.isatty():
            screen.still_there(console.url)
            sys.stdin.readline()
    screen.look_again(directory, Path(sys.argv[0]))


class _DemoRun:
    """One run: its steps, and the values that they share."""

    def __init__(self, directory: DemoDirectory, options: DemoOptions, screen: Screen) -> None:
        self._directory = directory
        self._options = options
        self._screen = screen
        self._first = directory.months_done
        year_end = (self._first // MONTHS + 1) * MONTHS
        self._end = year_end if options.months is None else self._first + options.months
        self._kills: Sequence[Kill] = ()

    def go(self) -> None:
        """Deliver the flights, stream them, show the result and check it."""
        screen = self._screen
        screen.title(self._directory, self._first, self._end)
        with screen.working("reading the flights"):
            self._deliver()
        if self._first:
            restored = read_version(self._directory, self._first)
            screen.restoring(restored, self._first, self._options.parallelism)
        with screen.working("starting Spark"):
            spark = DemoSpark(self._directory, self._options.parallelism)
        with spark:
            with screen.working("streaming; the first micro-batch starts the workers"):
                self._stream(spark)
            with screen.working("reading the result"):
                carried = spark.carried()
        self._conclude(carried)

    def _conclude(self, carried: list[Carried]) -> None:
        screen = self._screen
        with screen.working("asking a plain Python loop"):
            flights = list(departures(self._directory.files(self._end)))
            wanted = expected(flights)
        if carried != wanted:
            raise DemoFailedError(
                f"the sink holds {len(carried)} rows, and not the {len(wanted)} rows that a plain "
                f"Python loop gives; everything is kept in {self._directory.root}"
            )
        screen.result(carried, flights, airlines())
        if self._options.kill:
            screen.killed(self._kills)
        screen.checked(len(carried), len(flights), self._end)

    def _deliver(self) -> None:
        flights = Flights(self._directory.data)
        flights.prepare()
        self._directory.stream.mkdir(exist_ok=True)
        self._directory.keep(self._end)
        for number in range(self._first, self._end):
            if not self._directory.files(number + 1)[-1].exists():
                flights.deliver(number, self._directory.stream)

    def _stream(self, spark: DemoSpark) -> None:
        query = spark.start()
        killer = self._killer(spark) if self._options.kill else None
        try:
            for batch in self._progress(query):
                self._screen.batch(batch)
            query.awaitTermination()
        except StreamingQueryException as error:
            ours = why(error)
            reason = str(error).strip().splitlines()[-1] if ours is error else ours
            raise DemoFailedError(
                f"the query failed: {reason}; see {self._directory.log}"
            ) from error
        finally:
            query.stop()
            if killer is not None:
                self._kills = killer.stop()

    def _killer(self, spark: DemoSpark) -> Killer:
        """Start a thread that kills the workers once in each of the first three quarters."""
        months = self._end - self._first
        versions = sorted({self._first + 1 + months * n // (_KILLS + 1) for n in range(_KILLS)})
        killer = Killer(operator_storage(self._directory), spark.workers, versions)
        killer.start()
        return killer

    def _progress(self, query: Any) -> Iterator[BatchSummary]:
        """Yield each micro-batch when Spark has reported it."""
        seen = self._first
        while seen < self._end:
            active = query.isActive
            for progress in query.recentProgress:
                if progress["batchId"] >= seen and progress["numInputRows"]:
                    seen = progress["batchId"] + 1
                    yield self._batch(progress)
            if not active:
                return
            time.sleep(_LOOK_S)

    def _batch(self, progress: Any) -> BatchSummary:
        number = progress["batchId"]
        return BatchSummary(
            number=number,
            rows=progress["numInputRows"],
            seconds=progress["durationMs"]["triggerExecution"] / 1000,
            state=read_version(self._directory, number + 1),
        )
