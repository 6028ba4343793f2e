"""The contract of `forebay_state_api.contract.object_storage`, tested on one storage."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from forebay_engine.versions.cleaning.storage_probe import PROBES, probed
from forebay_state_api.contract.object_storage import ObjectNotFoundError, ObjectStorage
from forebay_state_api.errors import StorageError

_MANY: Final = 1_100
"""More than most stores list, or delete, in a request."""
_ROUNDS: Final = 10
_RIVALS: Final = 6
_LARGE: Final = (8 << 20) + 3
"""Bytes beyond the limit at which clients write in parts."""
_OUTSIDE: Final = ["", "/a", "../a", "a/../b", "a//b", "a/", ".", "..", "a\\b", "a\0b"]
_NAMES: Final = [
    "a b/c",
    "\u00e4/\u00e9",
    "q=20r/op",
    "a%41",
    "a+b",
    "a,b;c",
    "data/ffffffffffff/x-1",
]


class StorageTests:
    """Objects, lists, pages, names and rivals: what versions rely on.

    A subclass overrides the fixture `storage`.
    """

    @pytest.fixture
    def storage(self) -> ObjectStorage:
        """An empty storage. Every subclass overrides this one."""
        pytest.fail(f"{type(self).__name__} has to override the fixture storage")

    @pytest.fixture
    def again(self, storage: ObjectStorage) -> ObjectStorage:
        """The same place, as another process opens it; by default the same object."""
        return storage

    @pytest.mark.parametrize("promise", PROBES)
    def test_a_promise_that_forebay_doctor_probes(
        self, storage: ObjectStorage, promise: str
    ) -> None:
        problem = probed(storage, promise)
        assert not problem, f"{promise}: {problem}"

    def test_objects_of_any_size_come_back(
        self, storage: ObjectStorage, again: ObjectStorage
    ) -> None:
        for size in (0, 1, 70_000, _LARGE):
            data = bytes(range(256)) * (size // 256 + 1)
            storage.put(f"size/{size}", data[:size])
            assert again.get(f"size/{size}") == data[:size], f"{size} bytes"
            (info,) = [one for one in again.list("size") if one.name == f"size/{size}"]
            assert info.size == size
        assert again.get_ranges(f"size/{_LARGE}", [(_LARGE - 3, 3)]) == [data[_LARGE - 3 : _LARGE]]

    def test_a_put_replaces_the_whole_object(
        self, storage: ObjectStorage, again: ObjectStorage
    ) -> None:
        storage.put("a/b", b"a long first content")
        assert again.get("a/b") == b"a long first content"
        storage.put("a/b", b"short")
        assert again.get("a/b") == b"short"
        assert [(info.name, info.size) for info in again.list()] == [("a/b", 5)]

    def test_names_come_back_as_they_were(
        self, storage: ObjectStorage, again: ObjectStorage
    ) -> None:
        for number, name in enumerate(_NAMES):
            storage.put(name, b"%d" % number)
        assert [info.name for info in again.list()] == sorted(_NAMES)
        assert [again.get(name) for name in _NAMES] == [b"%d" % n for n in range(len(_NAMES))]
        storage.put("case", b"1")
        storage.put("Case", b"2")
        assert (again.get("case"), again.get("Case")) == (b"1", b"2")

    @pytest.mark.parametrize("name", _OUTSIDE)
    def test_names_that_leave_the_folder_are_refused(
        self, storage: ObjectStorage, name: str
    ) -> None:
        folder = storage.child("folder")
        calls: list[Callable[[], Any]] = [
            lambda: folder.put(name, b""),
            lambda: folder.put_if_absent(name, b""),
            lambda: folder.get(name),
            lambda: folder.get_ranges(name, [(0, 1)]),
            lambda: folder.delete([name]),
        ]
        for call in calls:
            with pytest.raises(ValueError, match="name"):
                call()
        assert storage.list() == []

    @pytest.mark.parametrize("prefix", ["..", "/a", "a//b", "a/../b"])
    def test_prefixes_that_leave_the_folder_are_refused(
        self, storage: ObjectStorage, prefix: str
    ) -> None:
        for call in (storage.list, storage.list_folders, storage.child):
            with pytest.raises(ValueError, match="name"):
                call(prefix)

    def test_an_absent_object_is_an_error_that_names_it(self, storage: ObjectStorage) -> None:
        storage.put("neighbour", b"")
        for call in (
            lambda: storage.get("not/there"),
            lambda: storage.get_ranges("not/there", [(0, 1)]),
        ):
            with pytest.raises(ObjectNotFoundError, match="not/there"):
                call()

    def test_ranges_come_in_the_order_in_which_they_were_asked_for(
        self, storage: ObjectStorage
    ) -> None:
        data = bytes(n * 7 % 256 for n in range(10_000))
        storage.put("a", data)
        asked = [(9_990, 10), (0, 0), (3, 2), (3, 2), (10_000, 0), (2, 4)]
        asked += [(n * 19 % 9_900, n % 50 + 1) for n in range(300)]
        found = storage.get_ranges("a", asked)
        assert found == [data[start : start + length] for start, length in asked]
        assert storage.get_ranges("a", []) == []

    def test_a_range_past_the_end_is_an_error(self, storage: ObjectStorage) -> None:
        storage.put("a", bytes(100))
        for start in (95, 100, 5_000):
            with pytest.raises(StorageError, match="a"):
                storage.get_ranges("a", [(0, 5), (start, 10)])

    def test_a_folder_has_nothing_of_its_neighbours(
        self, storage: ObjectStorage, again: ObjectStorage
    ) -> None:
        for name in ("b/1/x", "b/2", "b-c/3", "b.d", "bb/1", "B/4", "b0/5", "a"):
            storage.put(name, b"12")
        child = again.child("b")
        assert [info.name for info in child.list()] == ["1/x", "2"]
        assert [info.name for info in child.list_page().objects] == ["1/x", "2"]
        assert child.list_folders() == ["1"]
        assert [info.name for info in again.list("b/")] == ["b/1/x", "b/2"]
        assert again.list_folders() == sorted(["B", "b", "b-c", "b0", "bb"])
        assert again.list("a") == [], "an object is no folder"
        assert again.list("none") == []

    def test_a_child_is_a_folder_of_its_parent(
        self, storage: ObjectStorage, again: ObjectStorage
    ) -> None:
        child = storage.child("x").child("y/z/")
        child.put("a", b"1")
        assert child.put_if_absent("b", b"2") is True
        assert again.get("x/y/z/a") == b"1"
        assert [info.name for info in again.list()] == ["x/y/z/a", "x/y/z/b"]
        assert child.url == f"{storage.url.rstrip('/')}/x/y/z"
        child.delete(["a"])
        assert [info.name for info in again.list("x")] == ["x/y/z/b"]

    def test_many_objects_are_listed_in_order_in_pages_and_deleted(
        self, storage: ObjectStorage, again: ObjectStorage
    ) -> None:
        names = [f"{n % 7}/{n}" for n in range(_MANY)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: storage.put(name, b"x"), names))
        names.sort()
        assert [info.name for info in again.list()] == names
        for after in ("", "3", "3/500", "6/zzz"):
            assert _paged(again, after) == [name for name in names if name > after]
        storage.delete([*names[: _MANY - 1], "never/was"])
        assert [info.name for info in again.list()] == names[-1:]
        storage.delete([])

    def test_the_time_of_an_object_is_that_of_its_last_write(self, storage: ObjectStorage) -> None:
        """By the store's clock, which may differ from this machine's by minutes."""
        storage.put("a", b"1")
        (info,) = storage.list()
        assert info.modified.utcoffset() is not None, "the time has no zone"
        away = abs((info.modified - datetime.now(UTC)).total_seconds())
        assert away < 3600 or info.modified.year >= 9999, "neither now nor unknown"

    def test_put_if_absent_keeps_what_is_there(
        self, storage: ObjectStorage, again: ObjectStorage
    ) -> None:
        assert storage.put_if_absent("a", b"") is True
        assert again.put_if_absent("a", b"two") is False
        assert again.get("a") == b""
        storage.put("b", b"one")
        assert again.put_if_absent("b", b"two") is False
        assert storage.get("b") == b"one"

    def test_put_if_absent_has_one_winner(
        self, storage: ObjectStorage, again: ObjectStorage
    ) -> None:
        """Of rivals in two processes, over several rounds."""
        with ThreadPoolExecutor(_RIVALS) as pool:
            for number in range(_ROUNDS):
                barrier = threading.Barrier(_RIVALS)

                def rival(me: int, number: int = number, barrier: Any = barrier) -> bool:
                    barrier.wait(30)
                    one = storage if me % 2 else again
                    return one.put_if_absent(f"round/{number}", b"%d" % me)

                won = list(pool.map(rival, range(_RIVALS)))
                assert sum(won) == 1, f"{sum(won)} of {_RIVALS} rivals won"
                winner = b"%d" % won.index(True)
                assert again.get(f"round/{number}") == winner, "a loser's bytes stayed"

    def test_threads_may_share_it(self, storage: ObjectStorage) -> None:
        def work(number: int) -> bool:
            name, data = f"{number % 5}/{number}", b"%d" % number * 100
            storage.put(name, data)
            listed = name in {info.name for info in storage.list(f"{number % 5}")}
            return listed and storage.get(name) == data

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(100)))

    def test_nothing_is_there_at_first_and_nothing_is_made_by_looking(
        self, storage: ObjectStorage
    ) -> None:
        assert (storage.list(), storage.list_folders()) == ([], [])
        assert storage.list_page().is_last
        storage.delete(["a"])
        storage.child("x/y")
        assert (storage.list(), storage.list_folders()) == ([], [])


def _paged(storage: ObjectStorage, after: str) -> list[str]:
    """Return the names after a name, page by page."""
    found: list[str] = []
    for _ in range(_MANY):
        page = storage.list_page(found[-1] if found else after)
        found += [info.name for info in page.objects]
        if page.is_last:
            return found
        assert page.objects, "a page is empty, and is not the last one"
    pytest.fail("the last page does not come")
