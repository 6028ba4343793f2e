"""What an error of the operating system, of a service or of obstore is taken for."""

from __future__ import annotations

import errno
import os

import pytest
from obstore.exceptions import GenericError, NotFoundError, PermissionDeniedError

from forebay_state_api._storage.faults import cause_of, is_passing

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


def from_python(number: int) -> Exception:
    return OSError(number, os.strerror(number))


def from_obstore(number: int) -> Exception:
    """As obstore says it: the number stands in the words."""
    return GenericError(
        f"Generic LocalFileSystem error: Unable to write file: {os.strerror(number)} "
        f"(os error {number})\n\nDebug source:\nGeneric {{ source: Custom {{ … }} }}"
    )


said_by = pytest.mark.parametrize("said", [from_python, from_obstore])


@said_by
@pytest.mark.parametrize("number", ADVICE, ids=errno.errorcode.get)
def test_what_an_operator_can_do(said, number):
    assert cause_of(said(number)).endswith(f"; {ADVICE[number]}")
    assert os.strerror(number) in cause_of(said(number))


@said_by
@pytest.mark.parametrize("number", LASTING, ids=errno.errorcode.get)
def test_what_another_try_only_meets_again(said, number):
    assert not is_passing(said(number))


@said_by
@pytest.mark.parametrize("number", [*PASSING, *UNREACHABLE], ids=errno.errorcode.get)
def test_what_may_be_over_at_the_next_try(said, number):
    assert is_passing(said(number))


@pytest.mark.parametrize(
    ("status", "passing", "advice"),
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
def test_what_a_service_answers(status, passing, advice):
    error = GenericError(f"Generic S3 error: Client error with status code: {status} Something")
    assert is_passing(error) is passing
    assert advice in cause_of(error)
    assert (";" in cause_of(error)) is bool(advice)


def test_errors_without_a_number():
    assert is_passing(GenericError("Generic S3 error: error sending request"))
    assert "check the address" in cause_of(GenericError("Generic S3 error: error sending request"))
    assert not is_passing(GenericError("Generic LocalFileSystem error: it is odd"))
    assert not is_passing(NotFoundError("there is none"))
    assert cause_of(ValueError("one\n  line")) == "one line"
    assert "check the credentials" in cause_of(PermissionDeniedError("Generic S3 error: denied"))
    assert FORBIDDEN in cause_of(PermissionDeniedError("Generic LocalFileSystem error: denied"))


def test_no_password_and_no_signature_shows():
    refused = OSError("401 for url: http://me:hush@host/webhdfs/v1/a?op=OPEN&delegation=hush by me")
    assert cause_of(refused) == "401 for url: http://***@host/webhdfs/v1/a?*** by me"
