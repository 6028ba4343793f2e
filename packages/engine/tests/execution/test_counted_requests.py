"""Figures count what a server was really asked, on stand-ins for S3, GCS and Azure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from forebay_engine.execution.counted_storage import RequestCounts, counted
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor
from forebay_state_api.errors import StorageError
from forebay_state_api.plugins import plugins
from forebay_state_api.storage.opening import open_storage
from forebay_testing import KeyedJob
from forebay_testing.compaction import ImmediateCompaction

KINDS = ("get", "list", "put")
ROWS = [(f"key {n}",) for n in range(100)]


class Count(KeyedProcessFunction):
    def open(self, context):  # type: ignore[no-untyped-def]
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))

    def process_element(self, row, ctx):  # type: ignore[no-untyped-def]
        self.n.update(self.n.value() + 1)


def each_third() -> Callable[[str], bool]:
    """Return a rule that holds for a third of all requests."""
    numbers = iter(range(10_000))
    return lambda _: next(numbers) % 3 == 0


def asked(server: Any) -> dict[str, int]:
    seen = Counter(server.seen)
    return {kind: seen[kind] for kind in KINDS}


@pytest.mark.long
@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_a_subtask_reports_each_request_that_the_server_got(
    server: Any, backend: str, *, busy: bool
) -> None:
    job = KeyedJob(
        plugins().backend(backend),
        open_storage(server.url("state"), server.options),
        options={"max-runs": 2} if backend == "lsm" else {},
        compaction=ImmediateCompaction(open_storage("memory://elsewhere"), hold=True),
        cache_bytes=0,
    )
    stalled_s = 0.0
    for _ in range(4):
        server.seen.clear()
        server.busy = each_third() if busy else lambda _: False
        job.run(Count(), ROWS)
        figures = job.reports[0].figures
        assert {kind: figures[f"storage_requests_{kind}"] for kind in KINDS} == asked(server)
        assert figures["storage_requests_delete"] == 0
        stalled_s += figures.get("compaction_stalled_seconds", 0)
    assert (stalled_s > 0) is (backend == "lsm"), "a commit of lsm compacts"


def test_a_request_that_fails_for_good_counts_each_try(server: Any) -> None:
    counts = RequestCounts()
    storage = counted(open_storage(server.url("state"), server.options), counts).child("below")

    def busy_twice(_: str) -> bool:
        if server.seen.count("get") == 2:
            server.refused.add("get")
        return True

    server.busy = busy_twice
    with pytest.raises(StorageError, match="tried 3 times"):
        storage.get("a")
    assert counts.by_kind()["get"] == server.seen.count("get") == 3
