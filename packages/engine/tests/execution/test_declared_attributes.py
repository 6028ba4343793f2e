"""Functions declare calls and clients by class attributes of these names, and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from forebay_state_api import (
    AggregateFunction,
    Calls,
    Clients,
    ConfigurationError,
    KeyedProcessFunction,
    ReduceFunction,
)
from forebay_testing import FunctionHarness


def test_calls_has_one_name() -> None:
    with pytest.raises((RuntimeError, ConfigurationError)) as raised:  # until Python 3.11, and now
        type("F", (), {"limits": Calls()})
    assert "Rename it" in str(raised.value.__cause__ or raised.value)


@pytest.mark.parametrize("of_class", [True, False])
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("calls", {"timeout": 3}),
        ("calls", Calls),
        ("calls", 0),
        ("clients", {"http": list}),
        ("clients", [list]),
        ("clients", Clients),
    ],
)
def test_an_attribute_that_declares_nothing_is_refused(
    name: str, given: Any, of_class: bool
) -> None:
    class CallsNothing(KeyedProcessFunction):
        def process_element(self, row: Any, ctx: Any) -> Any:
            yield from ()

    function = CallsNothing()
    setattr(CallsNothing if of_class else function, name, given)
    says = (
        rf"CallsNothing\.{name} is a function's {name.title()}\(\.\.\.\), not .*: write {name} = "
    )
    with pytest.raises(ConfigurationError, match=says):
        FunctionHarness(function, "k")


def test_a_counter_that_hides_the_declaration_is_refused() -> None:
    class Hides(KeyedProcessFunction):
        calls = Calls(timeout=3)

        def open(self, context: Any) -> None:
            self.calls = 0

        async def process_element(self, row: Any, ctx: Any) -> Any:
            return [await ctx.call(asyncio.sleep, 0, (row["k"],))]

    refused = pytest.raises(ConfigurationError, match=r"Hides\.calls is a function's Calls")
    with FunctionHarness(Hides(), "k") as harness, refused:
        harness.process([{"k": "a"}])


def test_a_method_of_these_names_is_the_users_own() -> None:
    class Own(KeyedProcessFunction):
        def process_element(self, row: Any, ctx: Any) -> Any:
            yield self.calls(row), self.clients(row)

        def calls(self, row: Any) -> Any:
            return row["k"]

        clients = calls

    with FunctionHarness(Own(), "k") as harness:
        assert harness.process([{"k": "a"}]) == [("a", "a")]


@pytest.mark.parametrize("declared", [{"calls": Calls()}, {"clients": Clients(http=list)}])
@pytest.mark.parametrize("base", [ReduceFunction, AggregateFunction])
def test_a_function_inside_states_declares_neither(base: type, declared: dict[str, Any]) -> None:
    with pytest.raises((RuntimeError, ConfigurationError)) as raised:  # until Python 3.11, and now
        type("Sum", (base,), declared)
    assert "has no ctx" in str(raised.value.__cause__ or raised.value)
