"""Storage that fails, and numbers that nobody knows: pages name them, and the rest goes on."""

from __future__ import annotations

import shutil

import pytest

from forebay_engine.versions.format.folder import OperatorStorage
from forebay_engine.versions.format.manifest import Manifest, put_manifest
from forebay_state_api.contract.file_names import data_name
from forebay_state_api.contract.files import StateFile
from forebay_state_api.errors import CorruptStateError, StorageError
from forebay_state_api.storage.forwarding import ForwardingStorage
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_state_api.storage.opening import open_storage
from forebay_testing.committing_job import coordinates

HEAP = "/operators/clicks/visits"
LSM = "/operators/clicks/sessions"


class Failing(ForwardingStorage):
    """Fails every request below a folder."""

    below = "clicks/sessions"

    def around(self, operation, name, request):
        if name.startswith(self.below):
            raise StorageError("the store is on fire")
        return request()


@pytest.fixture
def failing(state_dir, new_console):
    return new_console(Failing(open_storage(state_dir)))


@pytest.mark.long
def test_one_operator_that_cannot_be_read_leaves_the_others(failing):
    page = failing.page("/")
    assert "not readable" in page
    assert "the store is on fire" in page
    assert failing.get(HEAP).status_code == 200
    answer = failing.get(LSM)
    assert (answer.status_code, "the store is on fire" in answer.text) == (502, True)


class NoManifests(ForwardingStorage):
    """Lists everything and returns no manifest."""

    def __init__(self, inner, error):
        super().__init__(inner)
        self._error = error

    def get(self, name):
        if "/manifest-" in name:
            raise self._error
        return super().get(name)


@pytest.mark.parametrize("error", [StorageError, CorruptStateError])
def test_a_timeline_without_its_manifest_has_all_but_the_symptoms(error, state_dir, new_console):
    storage = NoManifests(open_storage(state_dir), error("the manifest is out of reach"))
    page = new_console(storage).page(HEAP)
    assert "Symptoms are not known: the manifest is out of reach" in page
    assert "Versions 1 to 12" in page


class Broken(ForwardingStorage):
    """Raises an unexpected error below a folder; its text contains a key."""

    def around(self, operation, name, request):
        if name.startswith("clicks/sessions"):
            raise RuntimeError("user-7 is not a name")
        return request()


@pytest.mark.long
def test_an_error_that_nobody_expected_is_one_operators_too(state_dir, new_console, caplog):
    console = new_console(Broken(open_storage(state_dir)), ttl_s=0)
    for _ in range(3):
        page = console.page("/")
        assert "not readable" in page
        assert "RuntimeError" in page
        assert "user-7" not in page
    assert console.get(HEAP).status_code == 200
    assert console.get("/metrics").status_code == 200
    answer = console.get(LSM)
    assert answer.status_code == 500
    assert "RuntimeError" in answer.text
    assert "user-7" not in answer.text
    assert "frame-ancestors" in answer.headers["content-security-policy"]
    (logged,) = caplog.records
    assert "user-7 is not a name" in str(logged.exc_info[1])
    assert "in around" in caplog.text, "the traceback reaches where the error came from"


@pytest.mark.parametrize("number", ["9" * 5_000, "9" * 16, "-1", "latest", "\N{SUPERSCRIPT TWO}"])
def test_what_is_no_number_of_a_version_is_not_here(console, number):
    answer = console.get(f"{HEAP}/versions/{number}")
    assert answer.status_code == 404
    assert len(answer.text) < 10_000


class Unlistable(ForwardingStorage):
    """Cannot list the operators of the queries in ``denied``."""

    def __init__(self, inner, *denied, error=StorageError):
        super().__init__(inner)
        self.denied, self._error = {*denied}, error

    def list_folders(self, prefix=""):
        if prefix in self.denied:
            raise self._error("user-7 may not list")
        return super().list_folders(prefix)


@pytest.fixture
def unlistable(tmp_path, new_job):
    """A state directory with two queries, of which one cannot be listed."""
    new_job(tmp_path).run(1)
    shutil.copytree(tmp_path / "clicks", tmp_path / "carts")
    return Unlistable(open_storage(tmp_path), "carts")


@pytest.mark.usefixtures("no_rest")
def test_a_query_that_cannot_be_listed_leaves_the_others(unlistable, new_console):
    console = new_console(unlistable, ttl_s=0)
    page = console.page("/")
    assert "1 operator of 2 queries" in page
    assert [page.count(part) for part in ("not readable", "may not list", f'"{HEAP}"')] == [1, 1, 1]
    answer = console.get("/operators/carts/visits")
    assert (answer.status_code, "may not list" in answer.text) == (502, True)
    assert console.get("/operators/cars/visits").status_code == 404
    unlistable.denied.clear()
    assert "not readable" not in console.page("/")
    unlistable.denied.add("carts")
    page = console.page("/")
    assert ("2 operators of 2 queries" in page, page.count("not readable")) == (True, 1)
    assert console.get("/operators/carts/visits").status_code == 200, "it was known"
    unlistable.denied.add("clicks")
    assert console.get("/").status_code == 502


@pytest.mark.usefixtures("no_rest")
def test_an_error_that_nobody_expected_is_one_querys_too(unlistable, new_console, caplog):
    console = new_console(Unlistable(unlistable.inner, "carts", error=RuntimeError), ttl_s=0)
    for path in ("/", "/metrics", "/"):
        answer = console.get(path)
        assert (answer.status_code, "user-7" in answer.text) == (200, False)
    assert "RuntimeError" in answer.text
    (logged,) = caplog.records
    assert logged.args == ("carts", "RuntimeError")


def test_the_page_of_a_query_that_cannot_be_listed_leaves_the_others(unlistable, new_console):
    """All of them show one error, of the newest listing."""
    console = new_console(Unlistable(unlistable.inner, "carts", error=RuntimeError))
    answer = console.get("/operators/carts/visits")
    assert (answer.status_code, "RuntimeError" in answer.text) == (502, True)
    assert [console.get(path).status_code for path in ("/", "/metrics", HEAP)] == [200] * 3


class NoList(ForwardingStorage):
    """Cannot list the operators."""

    def list_folders(self, prefix=""):
        raise StorageError("the store is on fire")


def test_a_scrape_fails_if_nobody_knows_the_operators(state_dir, new_console):
    assert new_console(NoList(open_storage(state_dir))).get("/metrics").status_code == 502


@pytest.mark.usefixtures("no_rest")
def test_a_page_recovers_with_its_storage(state_dir, new_console, monkeypatch):
    console = new_console(Failing(open_storage(state_dir)), ttl_s=0)
    assert console.get(LSM).status_code == 502
    monkeypatch.setattr(Failing, "below", "nothing")
    assert console.get(LSM).status_code == 200


@pytest.fixture
def stranger(new_console):
    """An operator of a third party's backend, which counts nothing."""
    root = MemoryStorage("memory://stranger")
    for version in (1, 2):
        for subtask in range(2):
            made = coordinates(version, subtask, parallelism=2)
            name = data_name(version, "acme")
            manifest = Manifest(
                made=made,
                uid="op",
                backend="acme",
                parents=[],
                opened_version=version - 1,
                now_us=0,
                files=[StateFile(name=name, size=100, range=made.range)],
                meta={},
                protected=(),
                descriptions={},
                operator_state={},
                metrics={},
            )
            operator = OperatorStorage(root, "query/op")
            operator.put(name, bytes(100))
            put_manifest(operator, manifest)
    return new_console(root, show_data=True)


@pytest.mark.parametrize(
    "path",
    ["", "/groups", "/states", "/files", "/compaction", "/kept", "/versions/2", "/difference"],
)
def test_pages_show_what_a_strange_backend_stores(stranger, path):
    assert "\N{EN DASH}" in stranger.page(f"/operators/query/op{path}")


@pytest.mark.long
def test_numbers_that_are_not_known_are_said_to_be_unknown(stranger):
    assert "These versions have no times" in stranger.page("/operators/query/op")
    assert "This version has no times" in stranger.page("/operators/query/op/versions/2")
    groups = stranger.page("/operators/query/op/groups")
    assert "Not known: the rows of key groups, which the runtime" in groups
    assert "Not known: the cells of key groups, which the backend" in groups
    assert "Not known: the bytes" not in groups


def test_numbers_that_are_not_known_are_empty_in_csv(stranger):
    groups = stranger.page("/operators/query/op/groups.csv").splitlines()
    assert groups[:2] == ["key_group,subtask,rows,bytes,cells,files", "0,0,,25.0,,1"]
    assert stranger.page("/operators/query/op/files.csv").splitlines()[1] == "0,0,3,0,100,2,"


@pytest.mark.parametrize("path", ["keys?key=a", "states?sizes=2"])
def test_a_backend_that_is_not_installed_cannot_be_looked_into(path, stranger):
    page = stranger.page(f"/operators/query/op/{path}")
    assert "acme" in page
    assert "install the distribution that brings it" in page
