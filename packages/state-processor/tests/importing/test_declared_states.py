"""The states that a function declares, as an import from elsewhere sees them."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import NamedTuple

import attrs
import pytest

from forebay_backend_heap.backend import HeapBackend
from forebay_backend_lsm.backend import LsmBackend
from forebay_engine.versions.format.key_types import KeyType
from forebay_state_api import (
    CheckpointedFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.errors import FunctionError
from forebay_state_processor.importing.declared_states import DeclaredStates

KEY = KeyType.of(str)
HOUR = timedelta(hours=1)


class Sale(NamedTuple):
    shop: str
    amount: int


class Shop(CheckpointedFunction, KeyedProcessFunction):
    closed = 0

    def initialize_state(self, context):
        self.rates = context.operator_state_store.get_list_state(ListStateDescriptor("rates", int))

    def snapshot_state(self, context):
        pass

    def open(self, context):
        assert list(self.rates.get()) == []
        self.total = context.get_state(ValueStateDescriptor("total", int))
        ttl = StateTtlConfig(HOUR)
        self.sales = context.get_list_state(ListStateDescriptor("sales", Sale, ttl=ttl))
        self.by_day = context.get_map_state(MapStateDescriptor("by_day", str, float))

    def process_element(self, row, ctx):
        raise AssertionError

    def close(self):
        Shop.closed += 1


class Reminder(KeyedProcessFunction):
    def process_element(self, row, ctx):
        raise AssertionError

    def on_timer(self, at, ctx):
        raise AssertionError


class Broken(KeyedProcessFunction):
    def open(self, context):
        raise ValueError("no network")

    def process_element(self, row, ctx):
        raise AssertionError


def declared(function, backend=HeapBackend):
    return DeclaredStates.of(function, key=KEY, uid="shops", backend=backend)


@pytest.mark.parametrize("backend", [HeapBackend, LsmBackend])
def test_names_types_and_times_to_live_are_those_of_the_descriptors(backend):
    found = declared(Shop(), backend)
    infos = found.infos()
    assert {name: (one.kind, one.type, one.ttl, one.has_ttl) for name, one in infos.items()} == {
        "total": ("value", "int", None, False),
        "sales": ("list", "Sale(shop: str, amount: int)", HOUR, True),
        "by_day": ("map", "str → float | None", None, False),
    }
    assert infos["sales"].spec.value.admit({"shop": "tea", "amount": 3}) == ("tea", 3)
    assert found.key_codec().description == KEY.description
    assert not found.has_timers


def test_the_function_is_closed_again():
    before = Shop.closed
    declared(Shop())
    assert Shop.closed == before + 1


def test_timers_are_those_of_a_function_with_on_timer():
    assert declared(Reminder()).has_timers


def test_it_is_plain_data():
    plain = attrs.asdict(declared(Shop()))
    assert json.loads(json.dumps(plain)) == plain


def test_a_function_that_fails_is_named():
    with pytest.raises(FunctionError, match=r"Broken\.open.*no network"):
        declared(Broken())
