"""Maps in the order of their keys, and timers in namespaces, that were stored once: still readable.

``tests/golden_order/<backend>-1`` holds two versions of two subtasks; `write_golden` made them.
`test_golden` has all other state.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from forebay_state_api import KeyedProcessFunction, SortedMapStateDescriptor
from forebay_state_api.plugins import plugins
from forebay_state_api.storage.opening import open_storage
from forebay_state_api.testing import ManualClock
from forebay_state_api.testing.job import KeyedJob

pytestmark = pytest.mark.long

GOLDEN = Path(__file__).parent / "golden_order"
STORED = ["heap-1", "lsm-1"]
STARTED = datetime(2024, 5, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
KEYS = ["a", "b", "c", "d"]
NAMESPACES = [None, "late", ("window", 7)]
NUMBERS = [-(1 << 62), -1, 0, 255, 256, 1 << 40]
SHARES = [float("-inf"), -1.5, -0.0, 1e-300, 2.0, float("inf")]
TEXTS = ["", "a", "a\0", "ab", "b", "ä", "\U0001f600"]
PAIRS = [("a", -1), ("a", 1), ("a\0", -5), ("b", 0)]
"""The keys of each map, in order."""


def at(seconds: int) -> datetime:
    return STARTED + seconds * SECOND


class Ordered(KeyedProcessFunction):
    """Follows the instructions of rows ``(key, what, number)``; emits timers that fire."""

    def open(self, context):
        self.maps = [
            context.get_sorted_map_state(SortedMapStateDescriptor(name, kind, int))
            for name, kind in (
                ("numbers", int),
                ("shares", float),
                ("texts", str),
                ("pairs", tuple[str, int]),
            )
        ]

    def process_element(self, row, ctx):
        for namespace in NAMESPACES:
            ctx.set_current_namespace(namespace)
            yield from getattr(self, row[1])(row[2], ctx) or ()

    def write(self, number, ctx):
        for entries, keys in zip(self.maps, (NUMBERS, SHARES, TEXTS, PAIRS), strict=True):
            for place, key in enumerate(reversed(keys)):
                entries.put(key, number + place)
        ctx.timers.register_processing_time(at(100 + number))

    def change(self, number, ctx):
        """Remove the first key of each map; from now on timers are stored under their keys, too."""
        for entries, keys in zip(self.maps, (NUMBERS, SHARES, TEXTS, PAIRS), strict=True):
            entries.remove(keys[0])
        ctx.timers.list_processing_time()
        ctx.timers.register_processing_time(at(200 + number))

    def look(self, _, ctx):
        timers = [(time - STARTED) // SECOND for time in ctx.timers.list_processing_time()]
        yield ctx.current_key, [list(entries.items()) for entries in self.maps], timers

    def on_timer(self, at, ctx):
        return [(ctx.current_key, ctx.current_namespace, (at - STARTED) // SECOND)]


def ordered_job(name: str, folder: Path, parallelism: int = 2) -> KeyedJob:
    return KeyedJob(
        plugins().backend(name.partition("-")[0]),
        open_storage(folder),
        uid="ordered",
        query="golden",
        key_type=str,
        clock=ManualClock(STARTED),
        parallelism=parallelism,
    )


def write_golden(name: str, folder: Path) -> None:
    job = ordered_job(name, folder)
    job.run(Ordered(), [(key, "write", number) for number, key in enumerate(KEYS)])
    job.run(Ordered(), [(key, "change", number) for number, key in enumerate(KEYS)])


def looked_at(job: KeyedJob) -> list[Any]:
    return sorted(job.run(Ordered(), [(key, "look", 0) for key in KEYS]))


def in_each_namespace(skipped: int, base: int, timers: Callable[[int], list[int]]) -> list[Any]:
    """Return what `look` yields after ``write`` with numbers from ``base`` on.

    The first ``skipped`` keys of each map have been removed since.
    """
    return [
        (
            key,
            [
                [(one, base + n + len(keys) - 1 - place) for place, one in enumerate(keys)][
                    skipped:
                ]
                for keys in (NUMBERS, SHARES, TEXTS, PAIRS)
            ],
            timers(n),
        )
        for n, key in enumerate(KEYS)
        for _ in NAMESPACES
    ]


def holds_everything(job: KeyedJob) -> None:
    job.batch_id = 2
    stored = in_each_namespace(1, 0, lambda n: [100 + n, 200 + n])
    assert looked_at(job) == stored
    job.run(Ordered(), [(key, "change", number) for number, key in enumerate(KEYS)])
    assert looked_at(job) == stored, "a timer that is registered again is the stored one"
    job.clock.advance(1_000 * SECOND)
    fired: list[Any] = job.run(Ordered(), [])
    times = [(key, base + n) for n, key in enumerate(KEYS) for base in (100, 200)]
    assert len(fired) == len(times) * len(NAMESPACES)
    assert {(key, namespace, second) for key, namespace, second in fired} == {
        (key, namespace, second) for key, second in times for namespace in NAMESPACES
    }
    job.run(Ordered(), [(key, "write", 2_000 + number) for number, key in enumerate(KEYS)])
    written = in_each_namespace(0, 2_000, lambda n: [2_100 + n])
    assert looked_at(job) == written, "a key that is written again is the stored one"


@pytest.mark.parametrize("name", STORED)
def test_this_release_writes_what_the_golden_directories_hold(tmp_path, name):
    write_golden(name, tmp_path)
    holds_everything(ordered_job(name, tmp_path))


@pytest.mark.parametrize("parallelism", [1, 2, 4])
@pytest.mark.parametrize("name", STORED)
def test_what_was_stored_is_read(tmp_path, name, parallelism):
    copied = Path(shutil.copytree(GOLDEN / name, tmp_path / name))
    holds_everything(ordered_job(name, copied, parallelism))
