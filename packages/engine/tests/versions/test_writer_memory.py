"""The memory of manifests that a process put: bounded, by name, and as it would read them."""

from forebay_engine.versions.format.epochs import EpochEntry
from forebay_engine.versions.format.manifest import read_manifest
from forebay_engine.versions.format.markers import list_version
from forebay_engine.versions.writer_memory import WriterMemory


def newest(query, version):
    (made,) = list_version(query.storage, version).manifests
    return made


def test_the_last_two_manifests_of_a_range_are_remembered_as_they_are_read(query):
    run = query.run(1)
    run.batches(0, 2)
    for version in (3, 2):
        made = newest(query, version)
        found = run.memory.manifest(query.storage.url, made.name, made.by.range)
        assert found == read_manifest(query.storage, made.name)
    older = newest(query, 1)
    assert run.memory.manifest(query.storage.url, older.name, older.by.range) is None


def test_another_directory_has_its_own(query):
    run = query.run(1)
    run.batch(0)
    made = newest(query, 1)
    assert run.memory.manifest("elsewhere", made.name, made.by.range) is None


def test_the_one_that_was_put_longest_ago_goes_first(query):
    run = query.run(2)
    run.batch(0)
    first, second = sorted(list_version(query.storage, 1).manifests, key=lambda m: m.by.subtask)
    manifests = [read_manifest(query.storage, made.name) for made in (first, second)]
    memory = WriterMemory(most_bytes=150)
    for made, manifest in zip((first, second), manifests, strict=True):
        memory.put("here", made.name, manifest, b"x" * 100)
    assert memory.manifest("here", first.name, first.by.range) is None
    assert memory._bytes == 100


def test_it_forgets_like_a_new_process(query):
    run = query.run(1)
    run.batch(0)
    made = newest(query, 1)
    entry = EpochEntry(1, 0, "a", "b")
    run.memory.entered("here", entry, run.memory.clock())
    assert run.memory.entry("here", "a") is entry
    run.memory.forget()
    assert run.memory.entry("here", "a") is None
    assert run.memory.manifest(query.storage.url, made.name, made.by.range) is None
