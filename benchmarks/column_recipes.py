"""The recipes for columns: ``python -m benchmarks.column_recipes`` (a minute).

Prints the CPU time of a row, in ns, in slices of 10,000 and of 250,000 rows, for functions of each
library on the heap backend. A library that is not installed is left out; ``uv sync --group docs``
installs Polars and DuckDB. Their threads are set to 1, as in a worker.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import Any, Final

os.environ.setdefault("POLARS_MAX_THREADS", "1")

import click
import numpy as np
import pyarrow as pa

from forebay_backend_heap import HeapBackend
from forebay_engine.columns import Rows
from forebay_engine.columns.outputs import Output
from forebay_state_api import KeyedBatchFunction, ListStateDescriptor, ValueStateDescriptor
from forebay_state_api.keys import key_group_of
from forebay_state_api.storage import open_storage
from forebay_testing.batches import Batches
from forebay_testing.job import KeyedJob

SIZES: Final = (10_000, 250_000)
USERS: Final = 100_000
MAX_PARALLELISM: Final = 128


class Recipe(KeyedBatchFunction):
    """A function without state, of one library."""

    def __init__(self, make: Callable[[Any, Any], Any]) -> None:
        self._make = make

    def process_batch(self, rows: Any, ctx: Any) -> Any:
        return self._make(rows, ctx)


class RunningTotals(KeyedBatchFunction):
    """A running sum, with a read and a write of each key."""

    def open(self, context: Any) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", int, default=0))

    def process_batch(self, rows: Any, ctx: Any) -> Any:
        total = ctx.groups.cumsum(rows["amount"], self.total.get_many(ctx.groups))
        self.total.put_many(ctx.groups, ctx.groups.last(total))
        return {"user": rows["user"], "total": total}


class Appends(KeyedBatchFunction):
    """A list that grows by each row: a loop over rows."""

    def open(self, context: Any) -> None:
        self.items: Any = context.get_list_state(ListStateDescriptor("items", int))

    def process_batch(self, rows: Any, ctx: Any) -> Any:
        self.items.add_many(ctx.groups, rows["amount"])


def of_groups(rows: Any, ctx: Any) -> Any:
    return {"total": ctx.groups.cumsum(rows["amount"])}


def of_numpy(rows: Any, ctx: Any) -> Any:  # noqa: ARG001 - as all of them
    return {"log": np.log2(np.asarray(rows["amount"]))}


def of_pandas(rows: Any, ctx: Any) -> Any:  # noqa: ARG001 - as all of them
    frame = rows.to_arrow().to_pandas()
    return frame.assign(total=frame.groupby("user").amount.cumsum())


def of_polars(rows: Any, ctx: Any) -> Any:  # noqa: ARG001 - as all of them
    import polars as pl

    return pl.from_arrow(rows.to_arrow()).with_columns(
        total=pl.col("amount").cum_sum().over("user")
    )


def of_duckdb(rows: Any, ctx: Any) -> Any:  # noqa: ARG001 - as all of them
    import duckdb

    database = duckdb.connect(config={"threads": 1})
    database.register("events", rows.to_arrow())
    window = 'sum(amount) OVER (PARTITION BY "user")'
    return database.sql(f'SELECT "user", {window} AS total FROM events').arrow()


RECIPES: Final[Mapping[str, tuple[str, Callable[[], KeyedBatchFunction]]]] = {
    "ctx.groups": ("pyarrow", partial(Recipe, of_groups)),
    "NumPy": ("numpy", partial(Recipe, of_numpy)),
    "pandas, cumsum": ("pandas", partial(Recipe, of_pandas)),
    "Polars, over": ("polars", partial(Recipe, of_polars)),
    "DuckDB, a window": ("duckdb", partial(Recipe, of_duckdb)),
    "a running sum in state": ("pyarrow", RunningTotals),
    "a list in state": ("pyarrow", Appends),
}


def rows_of(count: int) -> tuple[Rows, list[Any], Any]:
    """Return a slice of rows of some of the users."""
    drawn = np.random.default_rng(count)
    users = [f"user{n}" for n in drawn.integers(0, USERS, count)]
    amounts = pa.array(drawn.integers(1, 1_000, count))
    groups = np.array([key_group_of(one, MAX_PARALLELISM) for one in users])
    rows = Rows({"user": pa.array(users), "amount": amounts}, count)
    return rows, [rows["user"]], groups


def ns_of_a_row(make: Callable[[], KeyedBatchFunction], size: int, rounds: int) -> float:
    """Return the CPU time of a row, the median of the rounds."""
    job = KeyedJob(
        HeapBackend, open_storage("memory://recipes"), key_type=str, max_parallelism=MAX_PARALLELISM
    )
    job.batches = Batches(Output(None, "recipe"), ["user"], None, whole=True)
    found = []
    with job.subtask(make()) as running:
        for _ in range(rounds + 1):  # the first one warms up
            given = rows_of(size)
            started = time.process_time()
            running.process_slice(*given)
            running.take_rows()
            found.append((time.process_time() - started) / size * 1e9)
    return median(found[1:])


@click.command()
@click.option("--rounds", default=5, show_default=True, help="Slices of each size.")
@click.option("--size", "sizes", multiple=True, type=int, default=SIZES, help="Rows of a slice.")
def main(rounds: int, sizes: tuple[int, ...]) -> None:
    """Print the CPU time of a row for each recipe, in ns."""
    click.echo("| function | " + " | ".join(f"{size:,} rows" for size in sizes) + " |")
    click.echo("|---" * (len(sizes) + 1) + "|")
    for name, (module, make) in RECIPES.items():
        if find_spec(module) is None:
            continue
        shown = [f"{ns_of_a_row(make, size, rounds):,.0f}" for size in sizes]
        click.echo(f"| {name} | {' | '.join(shown)} |")


if __name__ == "__main__":
    main()
