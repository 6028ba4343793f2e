"""Picking bounds read, space and write amplification; simulated with sizes alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import pytest

from forebay_backend_lsm.layers import Layer, file_slice, layers_of
from forebay_backend_lsm.options import LsmOptions
from forebay_backend_lsm.picking import choose, is_garbage_due, relief
from forebay_state_api.contract.files import StateFile
from forebay_state_api.keys import KeyGroupRange

ALL = KeyGroupRange(0, 7)
RULES = LsmOptions()


def layers(*sizes: int, **meta: object) -> Sequence[Layer]:
    return layers_of(
        StateFile(name=f"{number}", size=size, range=ALL, meta=meta)
        for number, size in enumerate(sizes)
    )


def busy(found: Sequence[Layer], *numbers: int) -> set[tuple[str, KeyGroupRange]]:
    return {file_slice(file) for number in numbers for file in found[number].files}


def test_nothing_to_do() -> None:
    assert choose([], (), RULES, 0) is None
    assert choose(layers(100), (), RULES, 0) is None
    assert choose(layers(100, 10, 10, 10, 10, 10), (), RULES, 0) is None


def test_garbage_is_got_rid_of_by_merging_all() -> None:
    assert choose(layers(100, 74), (), RULES, 0) is None
    assert choose(layers(100, 40, 36), (), RULES, 0) == (0, 3)


def test_deletes_count_as_the_entries_that_they_hide() -> None:
    bottom = StateFile(name="0", size=1000, range=ALL, meta={"entries": 100})
    few = StateFile(name="1", size=10, range=ALL, meta={"entries": 70, "deletes": 70})
    many = attrs.evolve(few, meta={"entries": 75, "deletes": 75})
    assert not is_garbage_due(layers_of([bottom, few]), RULES)
    assert is_garbage_due(layers_of([bottom, many]), RULES)


def test_lanes_that_could_not_be_merged_are_not_tried_again() -> None:
    lanes = [
        StateFile(name=f"{n}", size=50, range=ALL, meta={"job": "j", "lane": n}) for n in range(8)
    ]
    assert len(layers_of(lanes)) == 8
    assert choose(layers_of(lanes), (), RULES, 0) is None
    new = StateFile(name="new", size=400, range=ALL)
    assert choose(layers_of([*lanes, new]), (), RULES, 0) == (0, 9)


def test_above_the_goal_the_newest_are_merged_down_to_a_much_larger_one() -> None:
    found = layers(10_000, 500, 500, 40, 5, 5, 5)
    assert choose(found, (), RULES, 0) == (3, 7)


def test_what_a_pending_job_reads_is_left_alone() -> None:
    found = layers(10_000, 500, 40, 5, 5, 5, 5, 5, 5, 5)
    taken = busy(found, 3, 4, 5)
    assert choose(found, taken, RULES, 1) == (6, 9)
    assert choose(found, busy(found, *range(10)), RULES, 1) is None
    assert choose(found, taken, RULES, 3) is None


def test_relief_removes_enough_and_more_where_that_is_cheap() -> None:
    sizes = [1000, 90, 90, 90, 90, 90, 90, 90, 90, 1, 1, 1]
    assert relief(layers(*sizes), (), RULES) == (9, 12)
    assert relief(layers(*sizes[:10]), (), RULES) is None
    equal = layers(1000, *[90] * 11)
    assert relief(equal, (), RULES) == (1, 12)
    assert relief(equal, busy(equal, 5), RULES) == (6, 12)
    assert relief(equal, busy(equal, 2, 4, 6, 8, 10), RULES) is None


@pytest.mark.long
@pytest.mark.parametrize("update", [0.0005, 0.005, 0.05, 0.3])
@pytest.mark.parametrize("latency", [1, pytest.param(2, marks=pytest.mark.slow), 4])
def test_amplification_is_bounded_over_a_thousand_versions(update: float, latency: int) -> None:
    """Random updates of a fixed key set, jobs that take some versions, and no commit that waits."""
    entries = 1_000_000
    size = round(entries * update)
    files = [StateFile(name="0", size=entries, range=ALL)]
    pending: list[tuple[int, list[StateFile], bool]] = []
    written = 0
    amplification = []
    for version in range(1, 1_001):
        for job in [job for job in pending if job[0] <= version]:
            pending.remove(job)
            files, output = install(files, job[1], entries, f"c{version}-{job[1][0].name}")
            written += output
        files.append(StateFile(name=f"{version}", size=size, range=ALL))
        found = layers_of(files)
        if (window := relief(found, taken(pending), RULES)) is not None:
            inputs = [file for layer in found[slice(*window)] for file in layer.files]
            files, output = install(files, inputs, entries, f"r{version}")
            written += output
            found = layers_of(files)
        window = choose(found, taken(pending), RULES, len(pending))
        if window is not None:
            inputs = [file for layer in found[slice(*window)] for file in layer.files]
            pending.append((version + latency, inputs, window[0] == 0))
        assert len(found) <= RULES.max_runs
        amplification.append(sum(file.size for file in files) / entries)
    late = (latency + 1) * update  # written until a job is picked and installed
    assert max(amplification) <= RULES.space_amplification + late
    assert written / (1_000 * size) < 12


def taken(pending: list[tuple[int, list[StateFile], bool]]) -> set[tuple[str, KeyGroupRange]]:
    return {file_slice(file) for _, inputs, _ in pending for file in inputs}


def install(
    files: list[StateFile], inputs: list[StateFile], entries: int, name: str
) -> tuple[list[StateFile], int]:
    start = files.index(inputs[0])
    total = sum(file.size for file in inputs)
    distinct = entries if start == 0 else round(entries * (1 - math.exp(-total / entries)))
    output = StateFile(name=name, size=min(total, distinct), range=ALL)
    return [*files[:start], output, *files[start + len(inputs) :]], output.size
