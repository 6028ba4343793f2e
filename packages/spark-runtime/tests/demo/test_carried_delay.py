"""The demo's function and the plain loop both return the expected rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from forebay_spark_runtime.demo.carried_delay import CarriedDelay
from forebay_spark_runtime.demo.check import Carried, Departure, expected
from forebay_spark_runtime.testing import FunctionHarness

START = datetime(2013, 1, 1, 10, tzinfo=UTC)


def flight(sequence, hours, dep_delay, arr_delay, tailnum="N1"):
    due = START + timedelta(hours=hours)
    return Departure(sequence, due, "UA", 1, tailnum, "JFK", "BOS", dep_delay, arr_delay)


FLIGHTS = [
    flight(0, 0, 0, 40),
    flight(1, 0, 60, 60, "N2"),
    flight(2, 3, 30, 50),  # carries 30
    flight(3, 4, None, None),  # cancelled: does not count
    flight(4, 6, 70, 20),  # carries 50
    flight(5, 9, 14, 80),  # not late enough: the chain ends
    flight(6, 13, 20, None, "N2"),  # too long after its previous flight
    flight(7, 14, 90, 10),  # carries 80, in a separate chain
]
CARRIED = [
    Carried("N1", 2, 30, 1, 30, 30),
    Carried("N1", 4, 50, 2, 80, 80),
    Carried("N1", 7, 80, 1, 80, 160),
]


def test_the_plain_loop_finds_the_chains():
    assert expected(FLIGHTS) == CARRIED


def test_the_function_finds_the_same_over_batches_and_a_rescale():
    with FunctionHarness(CarriedDelay(), key_by="tailnum", parallelism=2) as harness:
        rows = harness.process(FLIGHTS[:3])
        rows += harness.restart(parallelism=3).process(FLIGHTS[3:])
    assert [Carried(*row) for row in rows] == CARRIED


def test_flights_without_an_aircraft_are_left_out():
    assert expected([flight(0, 0, 0, 40, None), flight(1, 1, 40, 40, None)]) == []
