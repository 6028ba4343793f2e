"""The events that the benchmarks read: Parquet files, one per micro-batch, made once and kept."""

from __future__ import annotations

import os
import shutil
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Final, NamedTuple

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA: Final = "user string, amount long, seq long"
"""Spark's schema of the files."""

TTL: Final = timedelta(days=1)
"""The TTL of states that have one: nothing expires while a job runs."""

FIRST_MODIFIED_S: Final = 1_700_000_000
"""Modification time of the first file in seconds since the epoch; Spark reads in their order."""


class Event(NamedTuple):
    """One event as a row in memory."""

    user: str
    amount: int
    seq: int


@attrs.frozen(kw_only=True)
class Dataset:
    """The parameters of a data set: the same values give the same bytes on every machine."""

    keys: int
    """Users are drawn uniformly from this many."""
    rows_per_file: int
    """One file is one micro-batch."""
    files: int
    seed: int = 7

    @property
    def name(self) -> str:
        """The folder's name, with every value that determines the content."""
        return f"events-k{self.keys}-r{self.rows_per_file}-f{self.files}-s{self.seed}"

    @property
    def rows(self) -> int:
        """The number of events."""
        return self.rows_per_file * self.files


def default_folder() -> Path:
    """Return the folder for data if the user names none."""
    return Path(tempfile.gettempdir()) / "forebay-benchmarks"


def materialise(dataset: Dataset, folder: Path) -> Path:
    """Return the folder with the files of ``dataset``, and make it if it does not exist.

    An incomplete folder never has the final name.
    """
    final = folder / dataset.name
    if final.is_dir():
        return final
    folder.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=f".{dataset.name}-", dir=folder))
    try:
        _write_files(dataset, making)
        making.rename(final)
    except OSError:
        shutil.rmtree(making, ignore_errors=True)
        if not final.is_dir():  # else another run was quicker, with the same content
            raise
    return final


def first_files(source: Path, count: int, target: Path) -> Path:
    """Link the first ``count`` files of ``source`` into ``target``, for peers that run fewer."""
    target.mkdir(parents=True)
    for path in sorted(source.glob("*.parquet"))[:count]:
        os.link(path, target / path.name)
    return target


def rows_in_memory(keys: int, count: int, seed: int = 7) -> list[Event]:
    """Return ``count`` events as named tuples, for the benchmarks without Spark."""
    table = _events(np.random.default_rng(seed), keys, count, first=0)
    columns = [table.column(name).to_pylist() for name in Event._fields]
    return [Event(*values) for values in zip(*columns, strict=True)]


def _write_files(dataset: Dataset, folder: Path) -> None:
    random = np.random.default_rng(dataset.seed)
    for index in range(dataset.files):
        first = index * dataset.rows_per_file
        path = folder / f"f{index:03d}.parquet"
        pq.write_table(_events(random, dataset.keys, dataset.rows_per_file, first), path)
        modified = FIRST_MODIFIED_S + index
        os.utime(path, (modified, modified))


def _events(random: np.random.Generator, keys: int, count: int, first: int) -> pa.Table:
    users = random.integers(0, keys, count)
    amounts = random.integers(1, 1000, count)
    return pa.table(
        {
            "user": pa.array([f"user_{user:06d}" for user in users], pa.string()),
            "amount": pa.array(amounts, pa.int64()),
            "seq": pa.array(np.arange(first, first + count), pa.int64()),
        }
    )
