"""Object storage: one contract, on local directories and in memory."""

import os
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from unittest import mock

import obstore
import pytest
from obstore.exceptions import GenericError

from forebay_engine.versions.format.folder import OperatorStorage
from forebay_state_api.contract.object_storage import ObjectNotFoundError, ObjectPage
from forebay_state_api.errors import ConfigurationError, StorageError, UnknownPluginError
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_state_api.storage.opening import open_storage
from forebay_state_api.storage.urls import located


@pytest.fixture(params=["local", "memory", "s3", "gcs", "azure", "webhdfs", "dbfs"])
def storage(request, storage_of):
    return storage_of(request.param)


def test_what_is_put_is_got(storage):
    storage.put("a/b", b"one")
    storage.put("a/b", b"two")
    storage.put("empty", b"")
    assert storage.get("a/b") == b"two"
    assert storage.get("empty") == b""


def test_put_if_absent_keeps_what_is_there(storage):
    assert storage.put_if_absent("a/b", b"one") is True
    assert storage.put_if_absent("a/b", b"two") is False
    assert storage.get("a/b") == b"one"
    assert [info.name for info in storage.list()] == ["a/b"]


@pytest.mark.parametrize("kind", ["local", "memory", "s3", "gcs", "azure", "webhdfs", "dbfs"])
def test_put_if_absent_has_one_winner(storage_of, kind):
    storage = storage_of(kind)
    barrier = threading.Barrier(4)

    def rival(number):
        barrier.wait()
        return storage.put_if_absent("one", b"%d" % number)

    with ThreadPoolExecutor(4) as rivals:
        won = list(rivals.map(rival, range(4)))
    assert sorted(won) == [False, False, False, True]
    assert storage.get("one") == b"%d" % won.index(True)


@pytest.mark.parametrize("kind", ["local", "memory", "s3", "gcs", "azure", "webhdfs", "dbfs"])
def test_only_a_local_directory_does_not_wait(storage_of, kind):
    storage = storage_of(kind)
    operator = OperatorStorage(storage, "query/operator")
    for each in (storage, storage.child("a"), operator):
        assert each.waits is (kind != "local")


def test_nothing_exists_before_the_first_put(storage):
    assert storage.list() == []
    assert storage.list_folders() == []
    storage.delete(["a"])
    for read in (lambda: storage.get("a"), lambda: storage.get_ranges("a", [(0, 1)])):
        with pytest.raises(ObjectNotFoundError, match="'a'"):
            read()


def test_an_absent_object_among_others(storage):
    storage.put("b", b"")
    for read in (lambda: storage.get("a"), lambda: storage.get_ranges("a", [(0, 1)])):
        with pytest.raises(ObjectNotFoundError, match="'a'"):
            read()


def test_ranges_in_any_order(storage):
    storage.put("a", bytes(range(100)))
    assert storage.get_ranges("a", []) == []
    found = storage.get_ranges("a", [(90, 10), (0, 0), (3, 2), (3, 2), (100, 0)])
    assert found == [bytes(range(90, 100)), b"", b"\3\4", b"\3\4", b""]


def test_a_range_beyond_the_end_is_an_error(storage):
    storage.put("a", bytes(range(100)))
    for start in (95, 100, 200):
        with pytest.raises(StorageError, match="'a'") as caught:
            storage.get_ranges("a", [(0, 5), (start, 10)])
        assert "tried" not in str(caught.value)


def test_lists_are_recursive_sorted_and_relative(storage):
    for name in ("b/2", "b/1/x", "a", "bb/1"):
        storage.put(name, b"12")
    assert [info.name for info in storage.list()] == ["a", "b/1/x", "b/2", "bb/1"]
    assert [info.name for info in storage.list("b")] == ["b/1/x", "b/2"]
    assert [info.name for info in storage.list("b/")] == ["b/1/x", "b/2"]
    assert storage.list_folders() == ["b", "bb"]
    assert storage.list_folders("b") == ["1"]
    assert storage.list("c") == []
    info = storage.list("a")
    assert info == []
    first = storage.list()[0]
    assert (first.size, first.modified.tzinfo is not None) == (2, True)


def test_pages_begin_after_a_name_and_are_sorted(storage):
    names = ["a", "b/1/x", "b/2", "b-c", "bb/1", "c"]
    for name in names:
        storage.child("x").put(name, b"12")
    storage.put("y", b"")
    child = storage.child("x")
    assert child.list_page() == child.list_page("") == ObjectPage(child.list(), is_last=True)
    for after in ("a", "b", "b/1", "b/2", "b0", "bb/1"):
        found = child.list_page(after)
        assert [info.name for info in found.objects] == sorted(n for n in names if n > after)
    assert child.list_page("c") == ObjectPage([], is_last=True)
    assert storage.child("nothing").list_page() == ObjectPage([], is_last=True)


@pytest.mark.long
def test_a_local_page_walks_no_further_than_it_must(tmp_path):
    storage = open_storage(tmp_path)
    names = [f"{folder:03}/{number:03}" for folder in range(30) for number in range(100)]
    for folder in range(30):
        (tmp_path / f"{folder:03}").mkdir()
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / "029" / "099#12345").touch()
    assert [info.name for info in storage.list()] == names, "what is being written is left out"
    found, after = [], ""
    with mock.patch("os.scandir", side_effect=os.scandir) as scanned:
        while not (page := storage.list_page(after)).is_last:
            found += page.objects
            after = found[-1].name
    assert [*found, *page.objects] == storage.list()
    pages, folders = 3, 10
    assert scanned.call_count <= pages * (1 + folders + 2), "the root, and the folders of a page"


def test_a_local_page_with_encoded_names_is_as_a_list(tmp_path):
    storage = open_storage(tmp_path)
    for name in ("b%41", "c#x", "d", "ä/1"):
        storage.put(name, b"1")
    for folder in (storage, storage.child("ö/ö")):
        if folder is not storage:
            folder.put("e", b"1")
        assert folder.list_page() == ObjectPage(folder.list(), is_last=True)
    assert [info.name for info in storage.list_page("d").objects] == ["ä/1", "ö/ö/e"]
    assert [info.name for info in storage.list("ö")] == ["ö/ö/e"]
    assert [info.name for info in storage.list()] == ["b%41", "c#x", "d", "ä/1", "ö/ö/e"]


def test_a_local_list_is_that_of_obstore(tmp_path):
    storage = open_storage(tmp_path).child("q=20r/op")
    for name in ("a", "b/1/x", "b/2", "b-c/1", "b.d", "_e", "F"):
        storage.put(name, b"12")
    (tmp_path / "q=20r/op/b/linked").symlink_to(tmp_path / "q=20r/op/b-c")
    (tmp_path / "q=20r/op/b/empty").mkdir()
    listed = {folder: storage.list(folder) for folder in ("", "b", "b/1", "a", "nothing")}
    with mock.patch("os.scandir", side_effect=OSError):
        assert {folder: storage.list(folder) for folder in listed} == listed
    assert [info.name for info in listed["b"]] == ["b/1/x", "b/2", "b/linked/1"]


def test_a_link_that_is_turned_does_not_part_reads_from_writes(tmp_path):
    old, new, link = (tmp_path / name for name in ("old", "new", "link"))
    old.mkdir()
    new.mkdir()
    link.symlink_to(old)
    opened = open_storage(link)
    here = opened.child("q")
    here.put("a", b"12")
    link.unlink()
    link.symlink_to(new)
    assert here.get("a") == b"12"
    assert here.get_ranges("a", [(1, 1)]) == [b"2"]
    here.put("b", b"")
    assert here.put_if_absent("c", b"")
    assert [info.name for info in here.list()] == ["a", "b", "c"]
    assert [info.name for info in opened.list_page().objects] == ["q/a", "q/b", "q/c"]
    assert list(new.iterdir()) == []
    assert open_storage(link).list() == []


def test_a_child_is_a_folder(storage):
    child = storage.child("x").child("y/z/")
    child.put("a/b", b"1")
    assert storage.get("x/y/z/a/b") == b"1"
    assert [info.name for info in child.list()] == ["a/b"]
    assert child.list_folders() == ["a"]
    assert child.url.endswith("/x/y/z")
    child.delete(["a/b"])
    assert storage.list() == []


def test_delete_passes_over_what_is_gone(storage):
    for name in ("a", "b", "c"):
        storage.put(name, b"")
    storage.delete(["a", "never", "c"])
    assert [info.name for info in storage.list()] == ["b"]


def test_no_name_leaves_the_root(storage):
    actions = (
        lambda name: storage.put(name, b""),
        lambda name: storage.put_if_absent(name, b""),
        storage.get,
        lambda name: storage.get_ranges(name, []),
        lambda name: storage.delete([name]),
    )
    names = ["", "/a", "../a", "a/../b", "a//b", "a/", ".", "a\\b", "a\0b"]
    for name, action in product(names, actions):
        with pytest.raises(ValueError, match="below the storage's root"):
            action(name)


def test_no_prefix_leaves_the_root(storage):
    actions = (storage.list, storage.list_folders, storage.child)
    for prefix, action in product(["..", "/a", "/", "a//b"], actions):
        with pytest.raises(ValueError, match="below the storage's root"):
            action(prefix)


def test_a_local_put_leaves_no_part_of_itself(tmp_path):
    storage = open_storage(tmp_path)
    storage.put("a/b", b"x" * 1_000_000)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["b"]


def test_paths_may_be_relative_or_begin_at_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    open_storage("here").put("a", b"1")
    open_storage("~/state").put("a", b"2")
    open_storage((tmp_path / "uri").as_uri()).put("a", b"3")
    assert (tmp_path / "here/a").read_bytes() == b"1"
    assert (tmp_path / "home/state/a").read_bytes() == b"2"
    assert (tmp_path / "uri/a").read_bytes() == b"3"
    assert open_storage("here").url == str(tmp_path / "here")


@pytest.mark.parametrize("form", ["file:{}", "FILE://{}", "file://localhost{}"])
def test_forms_of_a_file_url(tmp_path, form):
    assert open_storage(form.format(tmp_path)).url == str(tmp_path)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3:/bucket/state", "pass a str"),
        ("memory:/x", "begin with memory://"),
        (Path("s3://bucket/state"), "pass a str"),
        ("hdfs:/namenode/state", "begin with hdfs://"),
        ("file://state/directory", "file:///absolute/path"),
        ("s3://[bucket]/state", "is not a URL"),
        ("file:///state#1", "%23"),
        ("file:///state?1", "%3F"),
        ("file:state", "begin with file:/"),
        ("s3:bucket/state", "begin with s3://"),
        ("s3//bucket/state", "begin with s3://"),
        ("dbfs:state", "begin with dbfs://"),
        ("S3A//bucket", "begin with s3a://"),
        ("sftp//host/state", "begin with sftp://"),
        (r"C:\state", "Windows path"),
        ("c:/state", "Windows path"),
        (r"\\server\share", "Windows path"),
        ("$HOME/state", r"\$HOME in it"),
        ("${HOME}/state", r"\$\{HOME\} in it"),
        ("s3://$BUCKET/state", r"\$BUCKET in it"),
        (" /state", "begins or ends with a blank"),
        ("/state\n", "begins or ends with a blank"),
        ("s3://bucket/state ", "begins or ends with a blank"),
        ("/state\0", "NUL"),
        ("~nobody-of-this-name/state", "cannot be found"),
    ],
)
def test_what_is_nearly_a_url_is_an_error(url, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=words):
        open_storage(url)
    assert list(tmp_path.iterdir()) == []


URLS = [
    "s3://bucket/state",
    "s3a://bucket/state",
    "gs://bucket/state",
    "az://container/state",
    "abfss://container@account.dfs.core.windows.net/state",
    "https://host/state",
    "memory://name/state",
    "hdfs://host:8020/state",
    "webhdfs://host:9870/state",
    "dbfs:/state",
    "file:///state",
    "third-party://host/state",
]


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(
    "more",
    ["?v=2", "#v2", "?", "#", "/../x", "/./x", "//x", "/%2E%2e/x", "/a%2F..", "/..", "?sig=hush"],
)
def test_two_urls_are_not_one_place_in_silence(url, more):
    with pytest.raises(ConfigurationError) as caught:
        located(url + more)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("url", URLS)
def test_a_trailing_slash_means_nothing(url):
    assert located(f"{url}/").rstrip("/") == located(url)


@pytest.mark.parametrize(
    ("server", "url"),
    [
        ("gcs", "gs://bucket/forms/gs"),
        ("azure", "az://bucket/forms/az"),
        ("azure", "abfss://bucket@account.dfs.core.windows.net/forms/abfss"),
        ("azure", "abfs://bucket@account.dfs.core.windows.net/forms/abfs"),
    ],
)
def test_forms_of_a_cloud_url(server, url, request):
    stand_in = request.getfixturevalue(server)
    open_storage(url, stand_in.options).put("x", b"")
    assert f"{url[url.index('forms') :]}/x" in stand_in.objects


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_forms_of_an_s3_url(scheme, s3_options):
    open_storage(f"{scheme}://bucket/forms/{scheme}", s3_options).put("x", b"1")
    assert open_storage(f"s3://bucket/forms/{scheme}", s3_options).get("x") == b"1"


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%20b", "a b", "ä", "a=b", "a:b", "s3:", "..."])
def test_a_path_is_a_path_as_it_is(tmp_path, name):
    open_storage(f"{tmp_path}/{name}/state").put("a", b"1")
    assert (tmp_path / name / "state/a").read_bytes() == b"1"


@pytest.mark.parametrize(
    ("written", "meant"),
    [("a%20b", "a b"), ("a b", "a b"), ("%C3%BC", "ü"), ("a%23b%3F", "a#b?"), ("a%2Fb", "a/b")],
)
@pytest.mark.parametrize("server", ["gcs", "azure"])
def test_percent_signs_in_urls_of_object_stores_are_decoded(written, meant, server, request):
    """As docs/how-to/storage.md says."""
    stand_in = request.getfixturevalue(server)
    open_storage(stand_in.url(f"decoded/{written}"), stand_in.options).put("x", b"")
    assert f"decoded/{meant}/x" in stand_in.objects


def test_a_password_in_a_url_is_refused_without_showing_it():
    with pytest.raises(ConfigurationError, match="at bucket has a password") as caught:
        open_storage("s3://user:hush@bucket/state")
    assert "hush" not in str(caught.value)
    for text in ("s3:/user:hush@bucket", "s3//user:hush@bucket", " s3://user:hush@bucket"):
        with pytest.raises(ConfigurationError) as caught:
            open_storage(text)
        assert "hush" not in str(caught.value)


def test_a_file_is_no_state_directory(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigurationError, match="is a file"):
        open_storage(tmp_path / "file")


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    storage = open_storage(tmp_path / "file/below")
    with pytest.raises(StorageError, match="file/below"):
        storage.put("a", b"")


@pytest.mark.parametrize("name", ["a/b=1/c-2.x", "with space/ä", "per%cent", "x#y"])
def test_what_is_written_is_found_whatever_its_name(tmp_path, name):
    storage = open_storage(tmp_path)
    assert storage.put_if_absent(name, b"1")
    assert not storage.put_if_absent(name, b"2")
    assert storage.get(name) == b"1"
    storage.put(name, b"3")
    assert storage.get(name) == b"3"
    assert [info.name for info in storage.list()] == [name]
    assert sum(path.is_file() for path in tmp_path.rglob("*")) == 1


@pytest.mark.parametrize("write", ["put", "put_if_absent"])
@pytest.mark.parametrize("vanishes", [1, 5])
def test_a_folder_that_vanishes_under_a_put_is_made_again(tmp_path, monkeypatch, write, vanishes):
    """Another process deletes the last object of the folder, and with it the emptied folder."""
    made = []
    mkdir = Path.mkdir

    def made_and_removed(path, *args, **options):
        mkdir(path, *args, **options)
        if path.name == "folder":
            made.append(path)
            if len(made) <= vanishes:
                path.rmdir()

    storage = open_storage(tmp_path, {"retry-budget": 0})
    monkeypatch.setattr(Path, "mkdir", made_and_removed)
    monkeypatch.setattr(obstore, "put", mock.Mock(side_effect=AssertionError("went to obstore")))
    getattr(storage, write)("above/folder/a", b"1")
    assert len(made) > vanishes
    assert storage.get("above/folder/a") == b"1"


@pytest.mark.long
@pytest.mark.parametrize("write", ["put", "put_if_absent"])
def test_a_folder_that_vanishes_under_obstores_put_is_made_again(tmp_path, monkeypatch, write):
    """obstore writes names that are not plain."""
    vanished = (
        "Generic LocalFileSystem error: Unable to create dir above/folder: "
        "No such file or directory (os error 2)"
    )
    put = obstore.put
    tries = iter([GenericError(vanished), FileNotFoundError(vanished)])

    def failing_twice(*args, **options):
        error = next(tries, None)
        if error is not None:
            raise error
        return put(*args, **options)

    monkeypatch.setattr(obstore, "put", failing_twice)
    storage = open_storage(tmp_path)
    getattr(storage, write)("above/folder/a b", b"1")
    assert storage.get("above/folder/a b") == b"1"


def test_what_was_left_half_written_is_not_listed(tmp_path, monkeypatch):
    storage = open_storage(tmp_path)
    storage.put("folder/a", b"1")
    killed = KeyboardInterrupt()
    monkeypatch.setattr(os, "replace", mock.Mock(side_effect=killed))
    monkeypatch.setattr(Path, "unlink", mock.Mock(side_effect=OSError))
    with pytest.raises(KeyboardInterrupt):
        storage.put("folder/a", b"2")
    assert len(list((tmp_path / "folder").iterdir())) == 2
    assert [info.name for info in storage.list()] == ["folder/a"]
    assert storage.get("folder/a") == b"1"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_directory_is_named(tmp_path: Path):
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match=str(tmp_path)):
        open_storage(tmp_path).put("a", b"")


def test_a_directory_that_cannot_be_made_says_what_to_do(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    storage = open_storage(tmp_path / "file" / "state")
    with pytest.raises(StorageError, match=r"cannot be made: .*spark\.forebay\.state\.dir, or st"):
        storage.put("a", b"")


def test_memory_of_one_name_is_shared():
    name = uuid.uuid4()
    MemoryStorage(f"memory://{name}").put("a/b", b"1")
    assert open_storage(f"memory://{name}/a").get("b") == b"1"
    assert open_storage(f"memory://{uuid.uuid4()}").list() == []


@pytest.mark.parametrize("url", ["memory://x", "/tmp"])
def test_no_option_is_ignored(url):
    with pytest.raises(ConfigurationError, match=r"no options.*aws_region"):
        open_storage(url, {"aws_region": "x"})


def test_an_empty_directory_name_is_an_error():
    with pytest.raises(ConfigurationError, match="empty string"):
        open_storage("")


def test_cloud_storage_is_opened_without_a_request():
    options = {"aws_region": "eu-central-1"}
    assert open_storage("s3://bucket/state/", options).url == "s3://bucket/state"
    with pytest.raises(ConfigurationError, match=r"cannot be opened.*nonsense"):
        open_storage("s3://bucket", {"nonsense": "1"})


def test_another_scheme_is_a_plugins_business():
    with pytest.raises(UnknownPluginError, match="xyzfs"):
        open_storage("xyzfs://host/state")


def test_databricks_spells_its_urls_with_one_slash():
    assert located("dbfs:/mnt/state") == located("dbfs:///mnt/state") == "dbfs:///mnt/state"
