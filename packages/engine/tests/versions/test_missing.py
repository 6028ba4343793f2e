"""Objects that are missing or cut: readers say so, and show no older version in their place."""

from __future__ import annotations

import pytest

from forebay_engine.versions.choosing.finality import mark_final, newest_shown, shown_at
from forebay_engine.versions.choosing.heads import list_heads, recovery_for
from forebay_engine.versions.choosing.reader import open_version
from forebay_engine.versions.choosing.recovery import put_recovery
from forebay_engine.versions.choosing.savepoints import create_savepoint
from forebay_engine.versions.choosing.timeline import timeline_version
from forebay_engine.versions.format.epochs import list_epochs
from forebay_engine.versions.format.markers import list_version
from forebay_state_api.errors import CorruptStateError


@pytest.fixture
def runs(query):
    """Two runs, of which the second made the versions 4 to 6."""
    first, second = query.run(2), query.run(2)
    first.batches(0, 2)
    second.batches(3, 5)
    return first, second


def assert_named(storage, name):
    """Every look for the newest version raises, and names an object."""
    looks = (
        lambda: newest_shown(storage, provisional=False),
        lambda: newest_shown(storage, provisional=True),
        lambda: open_version(storage, uid="op"),
        lambda: create_savepoint(storage, "kept", uid="op"),
    )
    for look in looks:
        with pytest.raises(CorruptStateError, match=name):
            look()


def manifest(storage, version):
    return list_version(storage, version).manifests[0].name


def test_the_record_of_the_newest_run(query, runs):
    query.storage.delete([f"runs/{runs[1].key}"])
    assert_named(query.storage, f"runs/{runs[1].key} .* is missing")


def test_the_record_of_an_older_run_whose_versions_are_stored(query, runs):
    query.storage.delete([f"runs/{runs[0].key}"])
    assert newest_shown(query.storage, provisional=True).at.version == 6
    with pytest.raises(CorruptStateError, match=f"runs/{runs[0].key} .* is missing"):
        timeline_version(query.storage, runs[1].key, 2)


def test_a_record_that_is_gone_with_the_versions_of_its_run(query, runs):
    query.storage.delete([f"runs/{runs[0].key}"])
    query.storage.delete(
        one.name for one in query.storage.list("versions") if runs[0].key in one.name
    )
    assert timeline_version(query.storage, runs[1].key, 6).version == 6
    assert timeline_version(query.storage, runs[1].key, 3) is None


def test_a_run_that_has_no_record_yet_is_passed_over(query, runs):
    query.storage.put("epochs/00000009-6-0123456789abcdef-0123456789abcdef", b"")
    assert newest_shown(query.storage, provisional=True).at.version == 6


@pytest.mark.parametrize("every", [False, True])
def test_the_entry_of_the_newest_run(query, runs, every):
    newest = list_epochs(query.storage).newest()
    names = [one.name for one in query.storage.list("epochs")]
    query.storage.delete(names if every else [newest.name])
    assert_named(query.storage, f"{newest.name} .* is missing")
    query.storage.put(newest.name, b"")
    assert newest_shown(query.storage, provisional=True).at.version == 6


def test_a_run_that_begins_while_the_epochs_are_listed_is_not_missing(query, runs):
    class Late(type(query.storage)):
        """Lists the epochs, the first time, as they were before the newest run."""

        lists = 0

        def list(self, prefix=""):
            found = super().list(prefix)
            if prefix == "epochs":
                self.lists += 1
            return found[:-1] if prefix == "epochs" and self.lists == 1 else found

    late = Late(query.storage, query.storage._clock)
    assert newest_shown(late, provisional=True).at.version == 6


def test_a_manifest_of_the_newest_version_that_is_cut(query, runs):
    name = manifest(query.storage, 6)
    query.storage.put(name, query.storage.get(name)[:-7])
    assert_named(query.storage, name)


def test_the_newest_final_version_below_a_provisional_one_that_is_cut(query, runs):
    name = manifest(query.storage, 5)
    query.storage.put(name, query.storage.get(name)[:-7])
    assert newest_shown(query.storage, provisional=True).at.version == 6
    for look in (
        lambda: newest_shown(query.storage, provisional=False),
        lambda: shown_at(query.storage, 5, provisional=True),
    ):
        with pytest.raises(CorruptStateError, match=name):
            look()
    assert shown_at(query.storage, 4, provisional=True).at.version == 4


def test_a_manifest_of_a_marked_version_that_is_gone(query, runs):
    mark_final(query.storage, 6, runs[1].key)
    query.storage.delete([manifest(query.storage, 6)])
    for provisional in (True, False):
        with pytest.raises(CorruptStateError, match=r"version 6 .* is incomplete: "):
            newest_shown(query.storage, provisional=provisional)


def test_a_manifest_of_a_version_from_which_the_run_went_on(query, runs):
    runs[1].begin(6)
    assert newest_shown(query.storage, provisional=False).at.version == 6
    query.storage.delete([manifest(query.storage, 6)])
    assert_named(query.storage, "version 6 .* is incomplete: there is no versions/")


@pytest.mark.parametrize("all_of_it", [False, True])
def test_the_version_with_which_the_newest_run_began(query, runs, all_of_it):
    query.run(2).begin(6)
    assert newest_shown(query.storage, provisional=False).at.version == 6
    of_version = [one.name for one in list_version(query.storage, 6).objects]
    query.storage.delete(of_version if all_of_it else [manifest(query.storage, 6)])
    assert_named(query.storage, "version 6")


def test_a_version_that_is_being_made_is_passed_over(query, runs):
    runs[1].begin(6)
    runs[1].begin(6, 1).commit()
    assert newest_shown(query.storage, provisional=True).at.version == 6


def test_the_entry_of_the_run_that_a_person_chose(query):
    older, chosen, other = query.run(2), query.run(2), query.run(2)
    older.batches(0, 2)
    chosen.batches(3, 5)
    other.batches(1, 4)
    epochs = list_epochs(query.storage)
    (head,) = [one for one in list_heads(query.storage, epochs) if one.run_key == chosen.key]
    put_recovery(query.storage, epochs, recovery_for(head, query.storage, epochs))
    assert newest_shown(query.storage, provisional=True).at.version == 6
    entry = list_epochs(query.storage).of_run(chosen.key).name
    query.storage.delete([entry])
    assert_named(query.storage, f"{entry} .* is missing")
