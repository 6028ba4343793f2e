"""Metrics, each declared once with its name, its meaning and how its readings are combined.

A metric is the declaration; the figures of a batch are the numbers of its metrics by their keys.
A class of metrics is an attrs class whose fields are made by `metric`. Sums, log texts, definitions
for Prometheus and the tables in the documentation are derived from the fields.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import attrs

from forebay_state_api.metrics.definitions import Metric, MetricKind, MetricUnit

T = TypeVar("T", bound=attrs.AttrsInstance)

_MEANING: Final = "meaning"
_ADD: Final = "add"
_KEY: Final = "key"


def metric(
    meaning: str,
    *,
    key: str | None = None,
    add: Callable[[Any, Any], Any] = operator.add,
    zero: Callable[[], Any] = int,
) -> Any:
    """Return a field for a metric.

    :param meaning: one sentence for the documentation.
    :param key: its key among the metrics of keyed operators, which manifests store; default: it is
        none of them.
    :param add: combines two readings into one; default: the sum.
    :param zero: returns the initial value; default: 0.
    """
    return attrs.field(factory=zero, metadata={_MEANING: meaning, _KEY: key, _ADD: add})


def keyed_fields(kind: type[attrs.AttrsInstance]) -> Mapping[str, attrs.Attribute[Any]]:
    """Return key → field, of the fields that are metrics of keyed operators."""
    return {key: field for field in attrs.fields(kind) if (key := field.metadata[_KEY])}


def keyed_figures(reading: attrs.AttrsInstance) -> dict[str, float]:
    """Return the figures of the fields that are metrics of keyed operators."""
    return {key: getattr(reading, one.name) for key, one in keyed_fields(type(reading)).items()}


def definition(
    field: attrs.Attribute[Any], *, area: str, what: str, unit: MetricUnit = MetricUnit.COUNT
) -> Metric:
    """Return the definition of a field: a sum is a counter, anything else a gauge."""
    add = field.metadata[_ADD]
    kind = MetricKind.COUNTER if add is operator.add else MetricKind.GAUGE
    meaning = field.metadata[_MEANING]
    return Metric(area=area, what=what, kind=kind, unit=unit, meaning=meaning, add=add)


def total(kind: type[T], readings: Iterable[T]) -> T:
    """Combine readings, each metric by its own function."""
    found = [kind(), *readings]
    return kind(
        **{
            field.name: functools.reduce(
                field.metadata[_ADD], [getattr(one, field.name) for one in found]
            )
            for field in attrs.fields(kind)
        }
    )


def nonzero(reading: attrs.AttrsInstance) -> dict[str, Any]:
    """Return name → number, without zeros."""
    numbers = {name: getattr(reading, name) for name in attrs.fields_dict(type(reading))}
    return {name: number for name, number in numbers.items() if number}


def shown(reading: attrs.AttrsInstance) -> str:
    """Return the non-zero numbers as text for logs."""
    return ", ".join(f"{name} {_text(value)}" for name, value in nonzero(reading).items())


def described(kind: type[attrs.AttrsInstance]) -> dict[str, str]:
    """Return name → meaning, for the documentation."""
    return {field.name: field.metadata[_MEANING] for field in attrs.fields(kind)}


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
