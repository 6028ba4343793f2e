"""Functions that count the rows of each user, for tests of what happens around them."""

from __future__ import annotations

import sys

from pyspark import cloudpickle

from forebay_state_api import KeyedCoProcessFunction, KeyedProcessFunction, ValueStateDescriptor


class Count(KeyedProcessFunction):
    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))

    def process_element(self, row, ctx):
        self.n.update(self.n.value() + 1)
        yield row.user, self.n.value()


class CountBoth(KeyedCoProcessFunction):
    open = Count.open
    process_element1 = process_element2 = Count.process_element


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import it
