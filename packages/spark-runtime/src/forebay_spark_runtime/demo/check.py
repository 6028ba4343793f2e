"""The expected result of the demo, computed by a plain loop without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pyarrow import parquet

from forebay_spark_runtime.demo.carried_delay import LATE, TURNAROUND


class Departure(NamedTuple):
    """A row of the stream."""

    sequence: int
    departure: Any
    carrier: str
    flight: int
    tailnum: str | None
    origin: str
    dest: str
    dep_delay: int | None
    arr_delay: int | None


class Carried(NamedTuple):
    """A row that the function emits."""

    tailnum: str
    sequence: int
    carried: int
    legs: int
    minutes: int
    total: int


def departures(files: Iterable[Path]) -> Iterator[Departure]:
    """Yield all rows of the stream's files, in order."""
    for file in files:
        columns = parquet.read_table(file).to_pydict().values()
        yield from map(Departure, *columns)


def expected(flights: Iterable[Departure]) -> list[Carried]:
    """Return the rows that an undisturbed run emits, in the order of the flights."""
    planes: dict[str, tuple[Any, int, Carried]] = {}
    found = []
    for flight in flights:
        plane = flight.tailnum
        if plane is None or flight.dep_delay is None:
            continue
        left, behind, last = planes.get(plane, (flight.departure, 0, Carried(plane, 0, 0, 0, 0, 0)))
        carried = min(behind, flight.dep_delay) if flight.departure - left <= TURNAROUND else 0
        if carried >= LATE:
            last = Carried(
                plane,
                flight.sequence,
                carried,
                last.legs + 1,
                last.minutes + carried,
                last.total + carried,
            )
            found.append(last)
        else:
            last = last._replace(legs=0, minutes=0)
        planes[plane] = (flight.departure, flight.arr_delay or 0, last)
    return found
