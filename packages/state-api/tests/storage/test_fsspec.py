"""Peculiarities of fsspec's file systems."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from forebay_state_api.contract.object_storage import ObjectNotFoundError
from forebay_state_api.errors import ConfigurationError, StorageError, UnknownPluginError
from forebay_state_api.plugins import plugins
from forebay_state_api.storage.fsspec import FsspecStorage
from forebay_state_api.storage.opening import open_storage
from forebay_testing import Crash


class Strict(LocalFileSystem):
    """Renames as HDFS and DBFS do: never over a file. Says nothing of times, as DBFS does not."""

    protocol = "strict"

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        if Path(path2).exists():
            raise FileExistsError(path2)
        super().mv(path1, path2)

    def info(self, path: str, **more: Any) -> dict[str, Any]:
        reply = super().info(path, **more)
        return {name: reply[name] for name in ("name", "size", "type")}

    def ls(self, path: str, detail: bool = False, **more: Any) -> Any:
        found = super().ls(path, detail=True, **more)
        reply = [{name: one[name] for name in ("name", "size", "type")} for one in found]
        return reply if detail else [one["name"] for one in reply]


class Replacing(LocalFileSystem):
    """Renames as HDFS does behind pyarrow: a file replaces a file, a directory goes into one."""

    protocol = "hdfs"
    _at_once = threading.Lock()
    """A rename there is atomic, whatever else is renamed meanwhile."""

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        target = Path(path2)
        with self._at_once:
            if Path(path1).is_dir() and target.is_dir():
                target = target / Path(path1).name
            Path(path1).replace(target)


@pytest.fixture
def replacing(tmp_path: Path) -> FsspecStorage:
    return FsspecStorage.on(Replacing(), str(tmp_path), "hdfs://here")


@pytest.fixture
def strict(tmp_path: Path) -> FsspecStorage:
    return FsspecStorage.on(Strict(), str(tmp_path), "strict://here")


def test_a_rename_that_does_not_replace_lets_one_win(strict: FsspecStorage, tmp_path: Path) -> None:
    assert strict.put_if_absent("a/b", b"one")
    assert not strict.put_if_absent("a/b", b"two")
    (tmp_path / "a/b").unlink()
    assert strict.put_if_absent("a/b", b"three")
    assert strict.get("a/b") == b"three"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["b"]


def test_the_loser_of_a_race_of_renames(
    strict: FsspecStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rival's object appears after this one has seen that there is none."""
    exists = strict._fs.exists
    monkeypatch.setattr(strict._fs, "exists", lambda path: ".aside" in path and exists(path))
    strict.put("a", b"theirs")
    assert not strict.put_if_absent("a", b"mine")
    assert strict.get("a") == b"theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_of_rivals_whose_renames_replace_one_wins(replacing: FsspecStorage) -> None:
    replacing.put("folder/other", b"")
    barrier = threading.Barrier(4)

    def rival(number: int) -> bool:
        barrier.wait()
        return replacing.put_if_absent("folder/one", b"%d" % number)

    for _ in range(5):
        with ThreadPoolExecutor(4) as rivals:
            won = list(rivals.map(rival, range(4)))
        assert sorted(won) == [False, False, False, True]
        assert replacing.get("folder/one") == b"%d" % won.index(True)
        assert [info.name for info in replacing.list()] == ["folder/one", "folder/other"]
        assert replacing.list_folders("folder") == []
        replacing.delete(["folder/one"])


def test_who_comes_later_writes_what_a_dead_winner_claimed(
    replacing: FsspecStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(replacing, "_written_aside", die)
        with pytest.raises(Crash):
            replacing.put_if_absent("one", b"the winner's")
    assert replacing.list() == []
    assert not replacing.put_if_absent("one", b"another's")
    assert replacing.get("one") == b"the winner's"


def test_a_put_replaces_all_the_same(strict: FsspecStorage) -> None:
    strict.put("a", b"one")
    strict.put("a", b"two")
    assert strict.get("a") == b"two"


def test_where_times_are_not_told_everything_is_young(strict: FsspecStorage) -> None:
    strict.put("a", b"")
    assert strict.list()[0].modified > datetime(9000, 1, 1, tzinfo=UTC)


def test_a_put_under_way_does_not_show(strict: FsspecStorage, tmp_path: Path) -> None:
    (tmp_path / ".0123.aside").write_bytes(b"half")
    assert strict.list() == []


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"mtime": 1_704_067_200.0}, datetime(2024, 1, 1, tzinfo=UTC)),
        ({"modificationTime": 1_704_067_200_000}, datetime(2024, 1, 1, tzinfo=UTC)),
        ({"LastModified": datetime(2024, 1, 1)}, datetime(2024, 1, 1, tzinfo=UTC)),  # noqa: DTZ001 - some stores give it so
    ],
)
def test_times_in_the_forms_of_file_systems(
    strict: FsspecStorage, monkeypatch: pytest.MonkeyPatch, entry: Any, expected: datetime
) -> None:
    found = {"x": {"name": strict._path("x"), "size": 1, "type": "file", **entry}}
    monkeypatch.setattr(strict._fs, "find", lambda *_, **__: found)
    assert strict.list()[0].modified == expected


def test_errors_name_the_object_and_the_place(
    strict: FsspecStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OwnError(Exception):
        pass

    def fail(*_: object, **__: object) -> None:
        raise OwnError("out of order")

    with pytest.raises(ObjectNotFoundError, match="'a' in strict://here"):
        strict.get("a")
    for method in ("pipe_file", "cat_file", "find"):
        monkeypatch.setattr(strict._fs, method, fail)
    for action in (lambda: strict.put("a", b""), lambda: strict.get("a"), lambda: strict.list("a")):
        with pytest.raises(StorageError, match="'a' in strict://here: out of order"):
            action()


def test_an_error_of_a_server_is_tried_again(
    strict: FsspecStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Answer:
        status_code = 503

    class HttpError(OSError):
        response = Answer()

    def fail(*_: object, **__: object) -> None:
        raise HttpError("busy")

    monkeypatch.setattr(strict._fs, "cat_file", fail)
    with pytest.raises(StorageError) as caught:
        strict.get("a")
    assert caught.value.transient


def test_the_schemes_are_a_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plugins().storage("hdfs") is FsspecStorage
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'forebay-state-api\[fsspec\]'"):
        open_storage("dbfs:/state")


def test_a_file_system_that_cannot_be_opened_is_named() -> None:
    with pytest.raises(ConfigurationError, match="'dbfs:///state' cannot be opened"):
        open_storage("dbfs:/state", {"no_such_option": "1"})


def test_a_url_is_opened_with_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def url_to_fs(url: str, **options: Any) -> tuple[Any, str]:
        seen.update(options, url=url)
        return LocalFileSystem(), "/tmp/x"

    monkeypatch.setattr(fsspec.core, "url_to_fs", url_to_fs)
    storage = open_storage("webhdfs://host:9870/state", {"user": "me", "retry-budget": 1.0})
    assert storage.url == "webhdfs://host:9870/state"
    assert seen == {
        "url": "webhdfs://host:9870/state",
        "user": "me",
        "use_listings_cache": False,
    }


def test_what_another_process_does_is_seen_at_once(dbfs_options: dict[str, Any]) -> None:
    # Instances with different options share nothing in this process.
    mine, theirs = (open_storage("dbfs:/seen", {**dbfs_options, "asked_by": n}) for n in (1, 2))
    for _ in range(2):
        assert mine.list("folder") == []
        assert theirs.put_if_absent("folder/a", b"1")
        assert not mine.put_if_absent("folder/a", b"2")
        assert [info.name for info in mine.list("folder")] == ["folder/a"]
        theirs.delete(["folder/a"])
        with pytest.raises(ObjectNotFoundError):
            mine.get("folder/a")


@pytest.mark.parametrize("scheme", ["sftp", "ssh", "smb", "oss", "oci"])
def test_a_file_system_on_which_no_one_rival_wins_is_not_opened(scheme: str) -> None:
    with pytest.raises(UnknownPluginError, match=f"no storage for the URL scheme '{scheme}'"):
        open_storage(f"{scheme}://host/state")
