"""The classification of errors of the operating system, of services and of obstore."""

from __future__ import annotations

import errno
import os

import pytest
from fsspec.implementations.local import LocalFileSystem
from obstore.exceptions import GenericError, NotFoundError, PermissionDeniedError

from forebay_state_api.contract.storage_fault import StorageFault
from forebay_state_api.storage.clouds import S3Storage
from forebay_state_api.storage.fsspec import FsspecStorage
from forebay_state_api.storage.obstore import LocalStorage

LOCAL, S3 = LocalStorage("/tmp/state"), S3Storage("s3://bucket/state", {})

FORBIDDEN = "let the user that the executors run as read and write there"
ADVICE = {
    errno.EACCES: FORBIDDEN,
    errno.EPERM: FORBIDDEN,
    errno.EROFS: "the volume is mounted read-only",
    errno.ENOSPC: "make room on the volume, or move the state directory to a larger one",
    errno.EDQUOT: "raise the quota, or move the state directory",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f) of the executors",
    errno.EMFILE: "raise the limit of open files (ulimit -n) of the executors",
}
PASSING = [
    errno.EAGAIN,
    errno.EBUSY,
    errno.EINTR,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ESTALE,
]
UNREACHABLE = [
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.EPIPE,
    errno.ETIMEDOUT,
]
LASTING = [*ADVICE.keys() - {errno.EMFILE}, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL]


def from_python(number: int) -> StorageFault:
    return FsspecStorage.on(LocalFileSystem(), "/", "/").fault(OSError(number, os.strerror(number)))


def from_obstore(number: int) -> StorageFault:
    """The fault of obstore's error, which has the number in its text."""
    error = GenericError(
        f"Generic LocalFileSystem error: Unable to write file: {os.strerror(number)} "
        f"(os error {number})\n\nDebug source:\nGeneric {{ source: Custom {{ … }} }}"
    )
    return LOCAL.fault(error)


said_by = pytest.mark.parametrize("said", [from_python, from_obstore])


@said_by
@pytest.mark.parametrize("number", ADVICE, ids=errno.errorcode.get)
def test_what_an_operator_can_do(said, number):
    assert said(number).cause.endswith(f"; {ADVICE[number]}")
    assert os.strerror(number) in said(number).cause


@said_by
@pytest.mark.parametrize("number", LASTING, ids=errno.errorcode.get)
def test_what_another_try_only_meets_again(said, number):
    assert not said(number).transient


@said_by
@pytest.mark.parametrize("number", [*PASSING, *UNREACHABLE], ids=errno.errorcode.get)
def test_what_may_be_over_at_the_next_try(said, number):
    assert said(number).transient


@pytest.mark.parametrize(
    ("status", "transient", "advice"),
    [
        (401, False, "check the credentials"),
        (403, False, "check the credentials"),
        (404, False, "check the name of the bucket"),
        (408, True, ""),
        (429, True, ""),
        (500, True, ""),
        (503, True, ""),
        (400, False, ""),
    ],
)
def test_what_a_service_answers(status, transient, advice):
    error = GenericError(f"Generic S3 error: Client error with status code: {status} Something")
    fault = S3.fault(error)
    assert fault.transient is transient
    assert advice in fault.advice
    assert (";" in fault.cause) is bool(advice)


def test_errors_without_a_number():
    unsent = S3.fault(GenericError("Generic S3 error: error sending request"))
    assert unsent.transient
    assert "check the address" in unsent.cause
    assert not LOCAL.fault(GenericError("Generic LocalFileSystem error: it is odd")).transient
    assert not S3.fault(NotFoundError("there is none")).transient
    assert S3.fault(ValueError("one\n  line")).cause == "one line"
    denied = PermissionDeniedError("Generic error: denied")
    assert "check the credentials" in S3.fault(denied).cause
    assert FORBIDDEN in LOCAL.fault(denied).cause


def test_no_password_and_no_signature_shows():
    refused = OSError("401 for url: http://me:hush@host/webhdfs/v1/a?op=OPEN&delegation=hush by me")
    assert StorageFault.of(refused).cause == "401 for url: http://***@host/webhdfs/v1/a?*** by me"


def test_an_error_says_what_failed_and_where():
    error = S3.failed("read", "a/b", OSError(errno.ETIMEDOUT, "timed out"))
    assert str(error).startswith("could not read 'a/b' in s3://bucket/state: ")
    assert error.transient
    assert "'a/b' in s3://bucket/state" in str(S3.absent("a/b"))
