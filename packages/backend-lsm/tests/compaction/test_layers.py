"""Layers determine which runs may be merged, and where the result goes."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_backend_lsm.layers import file_slice, layers_of, replaced
from forebay_state_api.contract.files import StateFile
from forebay_state_api.keys import KeyGroupRange


def file(
    name: str, start: int = 0, end: int = 7, job: str | None = None, lane: int = 0
) -> StateFile:
    meta = {} if job is None else {"job": job, "lane": lane}
    return StateFile(name=name, size=1, range=KeyGroupRange(start, end), meta=meta)


def names(files: Sequence[StateFile] | None) -> str | None:
    return None if files is None else "".join(one.name for one in files)


def shown(files: Sequence[StateFile]) -> list[str | None]:
    return [names(layer.files) for layer in layers_of(files)]


def test_runs_of_one_chain_are_layers_each() -> None:
    assert shown([file("a"), file("b"), file("c")]) == ["a", "b", "c"]
    assert shown([]) == []


def test_the_outputs_of_a_compaction_are_one_run() -> None:
    files = [file("a", job="1"), file("b", job="1"), file("c", job="2"), file("d"), file("e")]
    assert shown(files) == ["ab", "c", "d", "e"]


def test_lanes_of_a_compaction_are_runs_each() -> None:
    files = [file("a", job="1"), file("b", job="1", lane=1), file("c", job="1", lane=1)]
    assert shown(files) == ["a", "bc"]


def test_chains_of_different_key_groups_lie_side_by_side() -> None:
    left, right = [file("a", 0, 3), file("b", 0, 3)], [file("c", 4, 7), file("d", 4, 7)]
    more = [file("e", 4, 7), file("f")]
    assert shown([*left, *right, *more]) == ["ac", "bd", "e", "f"]


def test_the_result_takes_the_place_of_its_inputs() -> None:
    files = [file("a"), file("b"), file("c"), file("d")]
    inputs = [file_slice(files[1]), file_slice(files[2])]
    assert names(replaced(files, inputs, [file("x"), file("y")])) == "axyd"
    assert names(replaced(files, inputs, [])) == "ad"


def test_a_result_whose_inputs_are_gone_has_no_place() -> None:
    files = [file("a"), file("b")]
    assert replaced(files, [file_slice(file("c"))], []) is None
    assert replaced(files, [file_slice(file("a", 0, 3))], []) is None


def test_a_result_that_would_jump_over_a_file_has_no_place() -> None:
    files = [file("a"), file("b"), file("c")]
    assert replaced(files, [file_slice(files[0]), file_slice(files[2])], [file("x")]) is None


def test_a_file_of_other_key_groups_may_lie_between_the_inputs() -> None:
    files = [file("a", 0, 3), file("b", 4, 7), file("c", 0, 3), file("d")]
    inputs = [file_slice(files[0]), file_slice(files[2])]
    assert names(replaced(files, inputs, [file("x", 0, 3)])) == "bxd"


GROUPS = st.tuples(st.integers(0, 7), st.integers(0, 7)).map(
    lambda pair: KeyGroupRange(*sorted(pair))
)


@st.composite
def versions(draw: st.DrawFn) -> list[StateFile]:
    ranges = draw(st.lists(GROUPS, min_size=1, max_size=10))
    return [attrs.evolve(file(f"{number}"), range=groups) for number, groups in enumerate(ranges)]


def chain(files: Sequence[StateFile], group: int) -> list[str]:
    """Return the files that are read for a key group, oldest first."""
    return [one.name for one in files if group in one.range]


@given(versions(), st.data())
def test_adjacent_layers_can_always_be_merged(files: list[StateFile], data: st.DataObject) -> None:
    layers = layers_of(files)
    start = data.draw(st.integers(0, len(layers) - 1))
    stop = data.draw(st.integers(start + 1, len(layers)))
    inputs = [one for layer in layers[start:stop] for one in layer.files]
    gone = {one.name for one in inputs}
    outputs = [attrs.evolve(one, name=f"x{one.name}") for one in inputs]
    after = replaced(files, {file_slice(one) for one in inputs}, outputs)
    assert after is not None
    for group in range(8):
        before = chain(files, group)
        assert chain(after, group) == [f"x{name}" if name in gone else name for name in before]


@given(versions())
def test_there_are_as_many_layers_as_files_are_read_for_some_key_group_or_more(
    files: list[StateFile],
) -> None:
    layers = layers_of(files)
    assert sorted(one.name for layer in layers for one in layer.files) == sorted(
        one.name for one in files
    )
    assert len(layers) >= max(len(chain(files, group)) for group in range(8))


@pytest.mark.parametrize("steps", [[1, 2, 1], [1, 4, 2, 1], [3, 1, 2]])
def test_after_rescales_layers_are_no_more_than_the_reads(steps: list[int]) -> None:
    """Files are clipped to the opened ranges, so older ranges are within newer ones."""
    chains: list[list[StateFile]] = [[] for _ in range(8)]
    ranges: list[KeyGroupRange] = []
    files: list[list[StateFile]] = [[]]
    owners = [KeyGroupRange(0, 7)]
    for step, parallelism in enumerate(steps):
        width = 8 // parallelism
        ranges = [
            KeyGroupRange(n * width, 7 if n == parallelism - 1 else (n + 1) * width - 1)
            for n in range(parallelism)
        ]
        opened = []
        for groups in ranges:
            own = []
            for owner, held in zip(owners, files, strict=True):
                part = owner.intersection(groups)
                for one in held if part else ():
                    cut = one.range.intersection(part)
                    own += [attrs.evolve(one, range=cut)] if cut else []
            opened.append([*own, *(file(f"{step}{n}", groups.start, groups.end) for n in "ab")])
        owners, files = ranges, opened
    assert chains
    for held in files:
        most = max(len(chain(held, group)) for group in range(8))
        assert len(layers_of(held)) == most
