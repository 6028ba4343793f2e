"""The mark of a state directory."""

from __future__ import annotations

import pytest

from forebay_compaction_ray import storage_mark
from forebay_state_api.contract.checksummed import seal
from forebay_state_api.errors import CorruptStateError
from forebay_state_api.storage.opening import open_storage


@pytest.fixture
def storage(tmp_path):
    return open_storage(str(tmp_path))


def test_a_directory_has_one_mark(storage, tmp_path):
    assert storage_mark.read(storage) is None
    mark = storage_mark.put(storage)
    assert storage_mark.put(storage) == storage_mark.read(storage) == mark
    assert storage_mark.put(open_storage(str(tmp_path / "another"))) != mark


def test_of_two_who_put_at_once_both_see_one_mark(storage, monkeypatch):
    first = {}

    def put_late(name, data):
        monkeypatch.undo()
        first["mark"] = storage_mark.put(storage)
        return storage.put_if_absent(name, data)

    monkeypatch.setattr(storage, "put_if_absent", put_late)
    assert storage_mark.put(storage) == first["mark"]


def test_a_torn_mark_is_put_again(storage):
    storage.put(storage_mark.NAME, seal({"id": "x"})[:-1])
    assert storage_mark.read(storage) is None
    assert storage_mark.put(storage) == storage_mark.read(storage)


@pytest.mark.parametrize(
    ("data", "what"),
    [(seal({"name": "x"}), "holds no id"), (seal({"id": "x"})[:-1] + b"?", "was altered")],
    ids=["of something else", "altered"],
)
def test_a_mark_that_cannot_be_used_is_named_with_the_cure(storage, data, what):
    storage.put(storage_mark.NAME, data)
    with pytest.raises(CorruptStateError, match=rf"{what}.*\. Delete it: a gateway"):
        storage_mark.read(storage)
