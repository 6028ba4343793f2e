"""States accept NumPy scalars as output columns do, on every backend."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

import attrs
import numpy as np
import pytest

from forebay_spark_runtime.testing import FunctionHarness
from forebay_state_api import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.errors import FunctionError
from forebay_state_api.plugins import Plugins
from forebay_testing.reference import ReferenceBackend


class Row(NamedTuple):
    user: str


@attrs.frozen
class Total:
    n: int
    mean: float


VALUES = [
    (int, np.int64(7), 7),
    (int, np.uint8(7), 7),
    (float, np.float64(0.5), 0.5),
    (float, np.float32(0.5), 0.5),
    (float, np.int32(2), 2.0),
    (bool, np.bool_(True), True),
    (str, np.str_("a"), "a"),
    (bytes, np.bytes_(b"a"), b"a"),
    (timedelta, np.timedelta64(3, "s"), timedelta(seconds=3)),
    ("long", np.int64(7), 7),
    ("int", np.int16(7), 7),
    ("double", np.float32(0.5), 0.5),
    ("boolean", np.bool_(False), False),
    (int | None, np.int64(7), 7),
    (tuple[int, str], (np.int64(7), np.str_("a")), (7, "a")),
    (list[float], [np.float64(0.5), 1.5], [0.5, 1.5]),
    (Total, Total(np.int64(1), np.float64(0.5)), Total(1, 0.5)),
    (None, {"a": [np.int64(1), np.float64(0.5)]}, {"a": [1, 0.5]}),
]


@pytest.fixture(params=["heap", "lsm", "reference"])
def backend(request, monkeypatch):
    installed = Plugins.backend

    def backend(self, name):
        return ReferenceBackend if name == "reference" else installed(self, name)

    monkeypatch.setattr(Plugins, "backend", backend)
    return request.param


class Keeps(KeyedProcessFunction):
    """Keeps each value in states of its kind, and emits the value as it is read."""

    def __init__(self, *values):
        self.values = values

    def open(self, context):
        self.states = [
            (
                context.get_state(ValueStateDescriptor(f"one {n}", kind)),
                context.get_list_state(ListStateDescriptor(f"many {n}", kind)),
                context.get_map_state(MapStateDescriptor(f"named {n}", int, kind)),
            )
            for n, (kind, _) in enumerate(self.values)
        ]

    async def process_element(self, row, ctx):
        for (_, value), (one, many, named) in zip(self.values, self.states, strict=True):
            await one.async_update(value)
            await many.async_add(value)
            await named.async_put(np.int64(1), value)
            elements = [element async for element in await many.async_get()]
            yield await one.async_value(), elements[-1], await named.async_get(1)


def test_scalars_are_kept_as_the_python_values_that_they_are(backend, tmp_path):
    function = Keeps(*((kind, given) for kind, given, _ in VALUES))
    with FunctionHarness(function, "user", backend=backend, state_dir=tmp_path) as harness:
        for _ in range(2):
            rows = harness.process([Row("ann")])
            for row, (_, _, kept) in zip(rows, VALUES, strict=True):
                assert row == (kept, kept, kept)
                assert [type(value) for value in row] == [type(kept)] * 3
            harness.restart(parallelism=2)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (int, np.float64(1.0)),
        (bool, np.int64(1)),
        (str, np.int64(1)),
        (int, np.array([1])),
        (datetime, np.datetime64("2026-01-01", "ns")),
        (int, np.datetime64("2026-01-01", "ns")),
        (int, np.timedelta64(1, "ns")),
    ],
    ids=str,
)
def test_unequal_values_are_still_refused(kind, given):
    with (
        FunctionHarness(Keeps((kind, given)), "user") as harness,
        pytest.raises(FunctionError, match="raised TypeError"),
    ):
        harness.process([Row("ann")])
