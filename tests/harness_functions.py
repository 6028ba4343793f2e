"""A function for tests of the harness, and its rows."""

from __future__ import annotations

from typing import NamedTuple

from forebay_state_api import (
    KeyedProcessFunction,
    ValueStateDescriptor,
)

COUNT = ValueStateDescriptor("n", int, default=0)


class Row(NamedTuple):
    user: str


class Count(KeyedProcessFunction):
    def open(self, context):
        self.n = context.get_state(COUNT)

    def process_element(self, row, ctx):
        self.n.update(self.n.value() + 1)
        yield row.user, self.n.value()
