"""Reading what an operator did stays fast when there is a lot of it."""

from __future__ import annotations

import cProfile
import functools
from datetime import UTC, datetime, timedelta

import pytest

from forebay_engine.versions.format import layout
from forebay_engine.versions.format.figures import Figures
from forebay_state_api.contract.object_storage import ObjectInfo
from forebay_state_processor.observing import OperatorListing
from forebay_state_processor.observing.known_names import KnownNames
from forebay_testing.committing_job import coordinates

pytestmark = pytest.mark.long

STARTED = datetime(2026, 1, 1, tzinfo=UTC)
FIGURES = Figures({"rows_in": 10**6, "rows_out": 10**6}, {"input": 3_000, "function": 2_000})
MOST_CALLS = 2_000_000
"""Some 0.4 s of CPU here. Calls are counted because a busy machine does not change their number."""


@functools.cache
def stored(versions: int, parallelism: int, max_parallelism: int) -> list[ObjectInfo]:
    """The markers and manifests of many versions, as a list returns them."""
    found = []
    for version in range(versions, 0, -1):
        for subtask in range(parallelism):
            made = coordinates(version, subtask, parallelism, max_parallelism)
            modified = STARTED + timedelta(seconds=version)
            names = [layout.marker_name(made), layout.manifest_name(made, 1, 7, FIGURES)]
            found += [ObjectInfo(name=name, size=7, modified=modified) for name in names]
    return sorted(found, key=lambda info: info.name)


MOST_CALLS_AGAIN = 300_000
"""For a listing after another one."""


def calls_for(objects: list[ObjectInfo], known: KnownNames | None = None) -> int:
    with cProfile.Profile() as profile:
        look(objects, known or KnownNames())
    return sum(one.callcount for one in profile.getstats())


def look(objects: list[ObjectInfo], known: KnownNames) -> None:
    timeline = OperatorListing(objects={"versions": objects}, known=known).timeline
    assert timeline.rate("rows_in", last=100)
    assert timeline.newest is not None
    assert timeline.newest.count("rows_in")


def test_ten_thousand_versions_take_a_bounded_number_of_calls() -> None:
    assert calls_for(stored(10_000, 1, 10_000)) < MOST_CALLS


def test_ten_thousand_key_groups_take_a_bounded_number_of_calls() -> None:
    assert calls_for(stored(10, 500, 10_000)) < MOST_CALLS


def test_what_was_listed_before_is_not_parsed_again() -> None:
    objects = stored(10_000, 1, 10_000)
    known = KnownNames()
    look(objects[2:], known)
    assert calls_for(objects, known) < MOST_CALLS_AGAIN
