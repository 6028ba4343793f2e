"""``forebay answers drop``: of keyed operators and of ordered waits, by query and uid."""

from __future__ import annotations

import json

import pytest

from forebay_cli.upkeep.answers import answers
from forebay_engine.journal.answer_objects import sealed_answers
from forebay_engine.versions.format.layout import AnswersName, operator_folder, waits_folder
from forebay_state_api.storage.opening import open_storage
from forebay_testing.committing_job import coordinates

NAME = AnswersName.of_attempt(coordinates(3, epoch=2, attempt_id=4), batch_ms=5)
OTHERS = ["q1/keyed/data/fffffffffffc/file-1", "q1/keyed/versions/fffffffffffc/0/marker-1"]


@pytest.fixture
def stored(tmp_path):
    root = open_storage(tmp_path)
    folders = [
        operator_folder("q1", "keyed"),
        operator_folder("q2", "keyed"),
        waits_folder("q1", "wait"),
    ]
    names = [f"{folder}/{NAME.text()}" for folder in folders]
    for name in names:
        root.put(name, sealed_answers([]))
    for name in OTHERS:
        root.put(name, b"state")
    return root, names


def left(root):
    return sorted(info.name for info in root.list(""))


def test_everything_that_is_kept_is_deleted_and_nothing_else(invoke, stored, tmp_path):
    root, names = stored
    dry = invoke(answers, "drop", "--state-dir", tmp_path, "--dry-run")
    assert dry.splitlines() == [*names, "would delete 3 object(s)"]
    assert left(root) == sorted([*names, *OTHERS])
    assert invoke(answers, "drop", "--state-dir", tmp_path).endswith("deleted 3 object(s)\n")
    assert left(root) == sorted(OTHERS)


@pytest.mark.parametrize(
    ("options", "dropped"),
    [
        (("--query", "q1"), (0, 2)),
        (("--uid", "keyed"), (0, 1)),
        (("--query", "q1", "--uid", "wait"), (2,)),
        (("--query", "q1", "--uid", "other"), ()),
    ],
)
def test_queries_and_uids_are_chosen(invoke, stored, tmp_path, options, dropped):
    root, names = stored
    printed = invoke(answers, "drop", "--state-dir", tmp_path, *options, "--json")
    found = json.loads(printed)
    assert found == {"names": [names[number] for number in dropped], "dry_run": False}
    assert left(root) == sorted({*names, *OTHERS} - {*found["names"]})
