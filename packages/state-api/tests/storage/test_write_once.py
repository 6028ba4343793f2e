"""A bucket on which nothing may be deleted: only deletions fail, with a one-line warning."""

from __future__ import annotations

from datetime import timedelta

import pytest
from click.testing import CliRunner, Result

from forebay_cli.main import main
from forebay_engine.versions import Janitor, RestoreFrom
from forebay_engine.versions.choosing.savepoints import (
    create_savepoint,
    delete_savepoint,
    list_savepoints,
)
from forebay_engine.versions.cleaning.storage_probe import examine
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import ConfigurationError, StorageError
from forebay_state_api.job.descriptors import ValueStateDescriptor
from forebay_state_api.storage.opening import open_storage
from forebay_testing import KeyedJob
from forebay_testing.reference import ReferenceBackend

from .stand_ins import S3, StandIn

pytestmark = pytest.mark.parametrize("server", [S3], indirect=True)

QUERY = "query"
COUNT = ValueStateDescriptor("n", int)


@pytest.fixture
def storage(server: StandIn) -> ObjectStorage:
    server.refused.add("delete")
    return open_storage(server.url("state"), server.options)


@pytest.fixture
def job(storage: ObjectStorage) -> KeyedJob:
    made = KeyedJob(ReferenceBackend, storage, descriptors=[COUNT])
    for number in range(6):
        made.do("a", ("n.update", number))
    return made


def forebay(server: StandIn, *arguments: str) -> Result:
    conf = [
        f"--conf=spark.forebay.storage.{name}={value}" for name, value in server.options.items()
    ]
    return CliRunner().invoke(main, [*arguments, "--state-dir", server.url("state"), *conf])


def test_a_savepoint_is_made_with_a_warning_of_one_line(
    job: KeyedJob, caplog: pytest.LogCaptureFixture
) -> None:
    saved = create_savepoint(job.storage, "kept", uid=job.uid)
    assert list_savepoints(job.storage) == [saved]
    (warning,) = caplog.messages
    assert warning.startswith("could not delete 'query/operator/pins/")
    assert warning.endswith(f"; this pin holds version {saved.version} for 3600 s longer")
    assert "\n" not in warning
    assert all(record.exc_info is None for record in caplog.records)
    caplog.clear()
    with pytest.raises(ConfigurationError, match="has a savepoint 'kept' already"):
        create_savepoint(job.storage, "kept", uid=job.uid)
    assert [message.rpartition("; ")[2] for message in caplog.messages] == [
        "it holds version 6 until it is deleted by hand",
        "this pin holds version 6 for 3600 s longer",
    ]
    with pytest.raises(StorageError, match="could not delete 'query/operator/savepoints/kept'"):
        delete_savepoint(job.storage, "kept", uid=job.uid)


@pytest.mark.long
def test_a_fork_begins_with_it(job: KeyedJob, storage: ObjectStorage) -> None:
    create_savepoint(job.storage, "kept", uid=job.uid)
    fork = KeyedJob(
        ReferenceBackend,
        storage,
        descriptors=[COUNT],
        query="fork",
        restore=RestoreFrom(QUERY, savepoint="kept"),
    )
    assert fork.do("a", ("n.value",)) == [5]


def test_the_janitor_ends_with_one_error(job: KeyedJob, server: StandIn) -> None:
    before = {*server.objects}
    janitor = Janitor(job.storage, run_key=job.run_key, retention=1, min_age=timedelta(0))
    with pytest.raises(StorageError, match="could not delete"):
        janitor.sweep(6)
    assert before <= {*server.objects}


@pytest.mark.long
def test_the_commands_say_so_in_a_line(job: KeyedJob, server: StandIn) -> None:
    of_job = ["--query", QUERY]
    made = forebay(server, "savepoint", "create", "kept", *of_job)
    assert (made.exit_code, "version 6" in made.stdout) == (0, True)
    for refused in (
        ["savepoint", "delete", "kept", *of_job],
        ["janitor", "--retention=1", "--min-age=0s", *of_job, "--uid", job.uid],
    ):
        done = forebay(server, *refused)
        assert done.exit_code == 2
        assert done.output.startswith("Error: could not delete ")
        assert done.output.count("\n") == 1


def test_the_doctor_finds_that_and_nothing_else(storage: ObjectStorage) -> None:
    *others, deletion = examine(storage)
    assert [finding.problem for finding in others] == [""] * 11
    assert "could not delete" in deletion.problem
    assert deletion.promise == "a deleted object is gone"


@pytest.mark.parametrize(
    ("arguments", "needs"),
    [
        (["doctor"], "get put list delete"),
        (["janitor", "--uid=operator", "--retention=1", "--min-age=0s"], "get put list delete"),
        (["savepoint", "create", "new"], "get put list (delete)"),
        (["savepoint", "list"], "get list"),
        (["savepoint", "delete", "kept", "--uid=operator"], "get delete"),
        (["state", "schema", "--uid=operator"], "get put list (delete)"),
        (["state", "skew", "--uid=operator"], "get put list (delete)"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_what_each_command_needs(
    server: StandIn, storage: ObjectStorage, arguments: list[str], needs: str
) -> None:
    """The table in docs/how-to/storage.md; what is in brackets may be refused."""
    server.refused.clear()
    job = KeyedJob(ReferenceBackend, storage, descriptors=[COUNT])
    for number in range(3):
        job.do("a", ("n.update", number))
    assert {*server.seen} == {"get", "put", "list"}, "a job itself deletes nothing"
    create_savepoint(job.storage, "kept", uid=job.uid)
    server.seen.clear()
    of_query = [] if arguments[0] == "doctor" else [f"--query={QUERY}"]
    assert forebay(server, *arguments, *of_query).exit_code == 0
    assert {*server.seen} == {*needs.replace("(", "").replace(")", "").split()}
    if "(delete)" in needs:
        server.refused.add("delete")
        again = ["other" if each == "new" else each for each in arguments]
        assert forebay(server, *again, *of_query).exit_code == 0
