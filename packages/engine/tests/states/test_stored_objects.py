"""Objects of the job's classes in state."""

from __future__ import annotations

import dataclasses
import functools

from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor


@dataclasses.dataclass
class Reading:
    value: int

    @functools.cached_property
    def doubled(self):
        return 2 * self.value


def test_only_declared_fields_of_an_object_are_kept(new_job):
    class Keeps(KeyedProcessFunction):
        def open(self, context):
            self.last = context.get_state(ValueStateDescriptor("last", Reading))

        def process_element(self, row, ctx):
            reading = Reading(1)
            assert reading.doubled == 2
            reading.note = "set later"
            self.last.update(reading)
            kept = self.last.value()
            yield row[0], kept == reading, sorted(vars(kept))

    assert new_job().run(Keeps(), [("a",)]) == [("a", True, ["value"])]
