"""Classes of metrics: sums and meanings."""

from __future__ import annotations

import attrs

from forebay_state_api.metrics import described, metric, nonzero, shown, total
from forebay_state_api.metrics.fields import keyed_figures


@attrs.define(kw_only=True)
class Numbers:
    rows: int = metric("Rows.")
    most: int = metric("The most rows.", key="rows_max", add=max)
    took_s: float = metric("Seconds.", add=max, zero=float)


def test_each_number_adds_up_in_its_way() -> None:
    readings = [Numbers(rows=2, most=7, took_s=0.5), Numbers(rows=3, most=4, took_s=1.25)]
    assert total(Numbers, readings) == Numbers(rows=5, most=7, took_s=1.25)
    assert readings[0] == Numbers(rows=2, most=7, took_s=0.5)
    assert total(Numbers, []) == Numbers()


def test_what_is_0_is_left_out() -> None:
    assert nonzero(Numbers(most=3)) == {"most": 3}
    assert shown(Numbers(rows=12_345, took_s=1.0)) == "rows 12,345, took_s 1.00"
    assert shown(Numbers()) == ""


def test_what_the_documentation_says() -> None:
    assert described(Numbers)["most"] == "The most rows."


def test_fields_with_a_key_are_numbers_of_keyed_operators() -> None:
    assert keyed_figures(Numbers(rows=2, most=0)) == {"rows_max": 0}
