"""The size of each state: read when a viewer asks, once for all, within bounds."""

from __future__ import annotations

import re

import pytest

from forebay_backend_heap.backend import HeapBackend
from forebay_console.watching import content
from forebay_state_api.errors import StorageError
from forebay_state_api.storage.forwarding import ForwardingStorage
from forebay_state_api.storage.opening import open_storage
from forebay_state_processor.observing import list_operator, quantities
from forebay_state_processor.reading import open_state

HEAP = "/operators/clicks/visits"
LSM = "/operators/clicks/sessions"


def sizes_in(page: str) -> dict[str, str]:
    """State → its size as the page shows it."""
    rows = re.findall(r'<tr><th scope="row">(\w+)</th>(.*?)</tr>', page)
    return {name: found[1] for name, row in rows if (found := re.search(r'"n">([^<]+)<', row))}


def offered(page: str) -> str:
    """The address of the sizes that the page offers."""
    return re.search(r'<a id="read" href="([^"]+)"', page)[1]


def clear(console, version: int) -> None:
    """Delete a version's manifests, as the janitor does, behind the console's back."""
    storage = console.directory.by_folder()["clicks/visits"].storage
    versions = list_operator(storage).timeline.versions
    found = next(one for one in versions if one.version == version)
    storage.delete([subtask.manifest for subtask in found.subtasks])


@pytest.mark.parametrize("operator", [HEAP, LSM])
def test_sizes_are_read_on_demand_and_without_show_data(operator, console, state_dir):
    page = console.page(f"{operator}/states")
    assert sizes_in(page) == {}
    assert console.counts.by_kind()["put"] == 0, "not even a pin"
    page = console.page(f"{operator}/states{offered(page)}")
    assert "Size in version 12" in page
    uid = operator.rpartition("/")[2]
    with open_state(str(state_dir), query="clicks", uid=uid, version=12, provisional=True) as found:
        sizes = found.state_bytes()
    assert sizes_in(page) == {name: quantities.size_text(size) for name, size in sizes.items()}
    assert sizes["count"] > sizes["recent"] == 0
    assert 'id="read"' not in page


@pytest.mark.usefixtures("no_rest")
@pytest.mark.parametrize("uid", ["visits", "sessions"])
def test_an_open_page_keeps_the_sizes_of_its_version(uid, tmp_path, new_job, new_console):
    job = new_job(tmp_path, uid, "lsm" if uid == "sessions" else "heap")
    job.run(1)
    console = new_console(tmp_path, ttl_s=0)
    path = f"/operators/clicks/{uid}/states"
    first = sizes_in(console.page(f"{path}?sizes=1"))
    job.run(1)
    console.page(path)  # reads the new manifests
    before = console.counts.by_kind()
    page = console.page(f"{path}?sizes=1")
    assert console.counts.by_kind() | {"list": 0} == before | {"list": 0}
    assert "States of version 2" in page
    assert "Size in version 1" in page
    assert sizes_in(page) == first
    assert offered(page) == "?sizes=2"
    second = sizes_in(console.page(f"{path}?sizes=2"))
    assert second != first
    assert sizes_in(console.page(f"{path}?sizes=1")) == first


@pytest.mark.usefixtures("no_rest")
def test_sizes_outlive_their_version(tmp_path, new_job, new_console):
    new_job(tmp_path).run(2)
    console, other = new_console(tmp_path, ttl_s=0), new_console(tmp_path, ttl_s=0)
    first = sizes_in(console.page(f"{HEAP}/states?sizes=1"))
    clear(console, 1)
    assert sizes_in(console.page(f"{HEAP}/states?sizes=1")) == first
    assert "Nothing is stored of version 1" in other.page(f"{HEAP}/states?sizes=1")


def test_a_version_that_was_cleared_meanwhile_says_so(tmp_path, new_job, new_console):
    new_job(tmp_path).run(2)
    console = new_console(tmp_path)
    console.page(f"{HEAP}/states")
    clear(console, 1)
    page = console.page(f"{HEAP}/states?sizes=1")
    assert "version 1 is not stored any more" in page
    assert 'data-refresh="0"' in page, "what failed is not read again and again"


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("x", "Versions are whole numbers."),
        ("-1", "Versions are whole numbers."),
        ("9" * 16, "Versions are whole numbers."),
        ("\N{SUPERSCRIPT TWO}", "Versions are whole numbers."),
        ("99", "Nothing is stored of version 99"),
        ("0", "Nothing is stored of version 0"),
    ],
)
def test_what_is_no_version_is_said_to_be_none(asked, answer, console):
    page = console.page(f"{HEAP}/states?sizes={asked}")
    assert answer in page
    assert sizes_in(page) == {}


def test_too_much_to_read_is_refused(console, monkeypatch):
    monkeypatch.setattr(content, "PART_BYTES", 1)
    page = console.page(f"{HEAP}/states?sizes=12")
    assert re.search(r"hold up to [\d,]+ bytes, more than the console reads for sizes", page)
    assert "forebay state schema --sizes" in page
    assert sizes_in(page) == {}
    assert sizes_in(console.page(f"{LSM}/states?sizes=12")), "lsm reads its indexes only"


@pytest.mark.usefixtures("no_rest")
def test_reading_sizes_ends_in_time(state_dir, new_console, monkeypatch):
    console = new_console(state_dir, ttl_s=0)
    with monkeypatch.context() as patched:
        patched.setattr(content, "MOST_S", -1.0)
        page = console.page(f"{LSM}/states?sizes=12")
    assert "the sizes of 1 of 3 subtasks of version 12 were read" in page
    assert "forebay state schema --sizes" in page
    assert sizes_in(console.page(f"{LSM}/states?sizes=12")), "an error is not kept for ever"


def test_a_backend_may_not_know_the_sizes(console, monkeypatch):
    monkeypatch.setattr(HeapBackend, "stored_bytes", lambda _: None)
    page = console.page(f"{HEAP}/states?sizes=12")
    assert "The backend heap does not report the size of each state." in page
    assert sizes_in(page) == {}


def test_reading_sizes_leaves_no_pin(console):
    storage = console.directory.by_folder()["clicks/visits"].storage
    before = storage.list("pins")
    console.page(f"{HEAP}/states?sizes=11")
    assert storage.list("pins") == before


class ReadOnly(ForwardingStorage):
    """Lets nobody write."""

    def put(self, name, data):
        raise StorageError("the credentials allow no writes")


def test_who_may_not_pin_a_version_is_told(state_dir, new_console):
    console = new_console(ReadOnly(open_storage(state_dir)))
    page = console.page(f"{HEAP}/states?sizes=12")
    assert "the credentials allow no writes" in page
