"""The sources from which the query listener gets the figures of ordered waits: accumulators."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

Source: TypeAlias = Callable[[str, int], Mapping[str, Mapping[str, float]]]
"""Returns operator → its figures, for a query's id and a micro-batch."""

_sources: Final[weakref.WeakKeyDictionary[Any, list[Source]]] = weakref.WeakKeyDictionary()


def add_source(context: Any, source: Source) -> None:
    """Let figures of this ``SparkContext`` be found in ``source`` too."""
    _sources.setdefault(context, []).append(source)


def wait_figures_of(
    context: Any, query_id: str, batch_id: int
) -> Iterator[tuple[str, Mapping[str, float]]]:
    """Yield each ordered wait of a micro-batch, with its figures."""
    for source in [*_sources.get(context, ())]:
        yield from source(query_id, batch_id).items()
