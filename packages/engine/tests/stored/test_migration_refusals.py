"""Stored state that the declared one cannot read is refused, and stays as it is."""

from __future__ import annotations

import pytest

from forebay_state_api.errors import StateMigrationError
from forebay_state_api.job.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from forebay_testing.backends.kinds import add
from forebay_testing.backends.migration import Text

from ..subjects import OnReference


class TestRefusals(OnReference):
    @pytest.mark.parametrize(
        ("stored", "declared", "write", "message"),
        [
            (
                ValueStateDescriptor("s", int),
                ListStateDescriptor("s", int),
                ("s.update", 1),
                "kind value.*kind list",
            ),
            (
                ListStateDescriptor("s", int),
                ValueStateDescriptor("s", int),
                ("s.add", 1),
                "kind list.*kind value",
            ),
            (
                ValueStateDescriptor("s", int),
                ReducingStateDescriptor("s", add, int),
                ("s.update", 1),
                "kind value.*kind reducing",
            ),
            (
                ValueStateDescriptor("s", int),
                ValueStateDescriptor("s", str),
                ("s.update", 1),
                r"\bint\b.*\bstr\b",
            ),
            (
                ValueStateDescriptor("s", int | None),
                ValueStateDescriptor("s", int),
                ("s.update", 1),
                r"\bint \| None\b.*\bint\b",
            ),
            (
                ListStateDescriptor("s", str),
                ListStateDescriptor("s", bytes),
                ("s.add", "x"),
                r"\bstr\b.*\bbytes\b",
            ),
            (
                MapStateDescriptor("s", str, int),
                MapStateDescriptor("s", int, int),
                ("s.put", "a", 1),
                r"\bstr\b.*\bint\b",
            ),
            (
                MapStateDescriptor("s", str, int),
                MapStateDescriptor("s", str, str),
                ("s.put", "a", 1),
                r"\bint\b.*\bstr\b",
            ),
            (
                ValueStateDescriptor("s", Text()),
                ValueStateDescriptor("s", str),
                ("s.update", "x"),
                r"text.*\bstr\b",
            ),
        ],
        ids=lambda one: getattr(one, "kind", one) and None,
    )
    def test_an_incompatible_declaration_names_state_types_and_way_out(
        self, new_job, stored, declared, write, message
    ):
        job = new_job(stored)
        job.do("k", write)
        job.descriptors = [declared]
        job.restart()
        with pytest.raises(StateMigrationError, match=rf"'s'.*{message}.*another name"):
            job.do("k", ("s.clear",))
        job.descriptors = [stored]
        job.restart()
        assert job.peek(stored, "k"), "the stored state is untouched"

    def test_a_changed_key_type(self, new_job):
        job = new_job(ValueStateDescriptor("s", int), key_type=str)
        job.do("k", ("s.update", 1))
        other = new_job(ValueStateDescriptor("s", int), key_type=int)
        other.batch_id = 1
        with pytest.raises(StateMigrationError, match=r"'s'.*str.*int"):
            other.do(1, ("s.value",))
