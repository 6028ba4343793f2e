"""Names: reversible, sortable, inside the operator's folder."""

from datetime import UTC, datetime

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_engine.versions.format import layout
from forebay_engine.versions.format.layout import Coordinates
from forebay_engine.versions.format.markers import Made
from forebay_state_api.contract.file_names import (
    data_name,
    data_version,
    inverted,
    random_id,
    version_of,
)
from forebay_state_api.contract.object_storage import ObjectInfo, checked_name
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.keys import KeyGroupRange
from forebay_testing.committing_job import coordinates


@given(st.text(min_size=1, max_size=20).filter(lambda t: t.isprintable()))
def test_escaping_is_reversible_and_stays_in_its_folder(name):
    part = layout.escaped(name, "the uid")
    assert layout.unescaped(part) == name
    assert "/" not in checked_name(part)


@pytest.mark.parametrize("name", [".", "..", "a/b", "a=b", "ä", "=2e"])
def test_special_names_are_escaped(name):
    assert layout.unescaped(layout.escaped(name, "the uid")) == name
    assert set("./").isdisjoint(layout.escaped(name, "the uid"))


@pytest.mark.parametrize(
    ("name", "why"), [("", "empty"), ("x" * 201, "too long"), ("\ud800", "not valid text")]
)
def test_names_that_are_no_path_part(name, why):
    with pytest.raises(ConfigurationError, match=f"the uid is .*{why}"):
        layout.operator_folder("q", name)


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**48 - 1))
def test_newer_versions_come_first(one, other):
    assert version_of(inverted(one)) == one
    assert (one < other) == (inverted(one) > inverted(other))


@pytest.mark.parametrize("version", [-1, 2**48])
def test_what_is_no_version(version):
    with pytest.raises(ValueError, match="not a version"):
        inverted(version)


def test_foreign_names_are_none_of_ours():
    assert version_of("lost+found") is None
    assert data_version("data/x/y") is None
    assert data_version("other/000000000000/y") is None
    assert Coordinates.parse(1, "1-2-3") is None


def test_coordinates_stand_in_the_name():
    made = Coordinates(
        version=5,
        max_parallelism=128,
        parallelism=3,
        subtask=2,
        range=KeyGroupRange(86, 127),
        epoch=4,
        run_key="0123456789abcdef",
        attempt_id=77,
        random_id=random_id(),
    )
    assert Coordinates.parse(5, made.text()) == made
    name = layout.marker_name(made)
    assert name == f"versions/{inverted(5)}/0/marker-128-3-2-86-127-4-0123456789abcdef-77"
    assert Coordinates.parse(5, made.attempt()) == attrs.evolve(made, random_id="")
    assert Coordinates.parse(5, made.text().replace("-86-127-", "-127-86-")) is None


@pytest.mark.parametrize("parallelism", [1, 2, 5, 64])
def test_two_subtasks_share_a_folder_the_first_with_the_last(parallelism):
    folders = [layout.pair_folder(3, subtask, parallelism) for subtask in range(parallelism)]
    assert folders == folders[::-1]
    assert len(set(folders)) == (parallelism + 1) // 2
    assert all(folder.startswith(f"{layout.version_folder(3)}/") for folder in folders)


def test_a_manifests_name_tells_its_batchs_time_and_whether_it_is_torn():
    made = coordinates(5)
    name = layout.manifest_name(made, 1_700_000_000_123, 42)
    modified = datetime(2024, 1, 1, tzinfo=UTC)
    for size, whole in ((42, True), (41, False)):
        found = Made.parse(ObjectInfo(name=name, size=size, modified=modified))
        assert (found.by, found.manifest, found.batch_ms) == (made, whole, 1_700_000_000_123)
    for other in (f"{name}x", name.replace("-42", ""), name.replace("manifest-", "other-")):
        assert Made.parse(ObjectInfo(name=other, size=42, modified=modified)) is None


def test_a_data_file_tells_in_which_version_it_was_made():
    name = data_name(9, "snapshot")
    assert data_version(name) == 9
    assert name != data_name(9, "snapshot")
