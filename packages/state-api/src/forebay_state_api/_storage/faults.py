"""Failures of storage: whether another try may succeed, and what an operator can do.

obstore says what happened in words; error numbers and HTTP status codes in them are what tells
causes apart.
"""

from __future__ import annotations

import errno
import re
from typing import Final

from obstore.exceptions import (
    BaseError,
    GenericError,
    JoinError,
    PermissionDeniedError,
    UnauthenticatedError,
)

from forebay_state_api._storage.redaction import redacted

_ERRNO: Final = re.compile(r"\(os error (\d+)\)")
_LOCAL: Final = "LocalFileSystem"
"""How obstore names a directory."""
_STATUS: Final = re.compile(r"status code: (\d{3})")
_CONFLICT: Final = "ConditionalRequestConflict"
"""How S3 names two conditional requests that met: either may be sent again."""

_PASSING: Final = frozenset(
    {
        errno.EAGAIN,
        errno.EBUSY,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EINTR,
        errno.EIO,
        errno.EMFILE,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENFILE,
        errno.EPIPE,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)
"""Errors of the operating system that may be over at the next try; a full disk is none."""
_PASSING_STATUS: Final = frozenset({408, 425, 429})

_FORBIDDEN: Final = "let the user that the executors run as read and write there"
_CREDENTIALS: Final = (
    "check the credentials of the executors (environment, or spark.forebay.storage.*) and what "
    "they permit"
)
_UNREACHABLE: Final = "check the address, and that it can be reached from the executors"
_BY_ERRNO: Final = {
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.EROFS: "the volume is mounted read-only",
    errno.ENOSPC: "make room on the volume, or move the state directory to a larger one",
    errno.EDQUOT: "raise the quota, or move the state directory",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f) of the executors",
    errno.EMFILE: "raise the limit of open files (ulimit -n) of the executors",
}


def is_panic(error: BaseException) -> bool:
    """Whether obstore's Rust code panicked; such an error is not an `Exception`."""
    return type(error).__name__ == "PanicException"


def is_from_obstore(error: BaseException) -> bool:
    """Whether obstore raises such errors."""
    return isinstance(error, (BaseError, OSError, ValueError, TypeError)) or is_panic(error)


def is_passing(error: BaseException) -> bool:
    """Whether the same request may succeed a little later."""
    if _CONFLICT in str(error):
        return True
    if (number := _errno(error)) is not None:
        return number in _PASSING
    if (status := _status(error)) is not None:
        return status >= 500 or status in _PASSING_STATUS  # noqa: PLR2004 - HTTP's own numbers
    if _LOCAL in str(error):
        return False
    return isinstance(error, (GenericError, JoinError, ConnectionError, TimeoutError))


def is_absent(error: BaseException) -> bool:
    """Whether a file or folder was not there."""
    return isinstance(error, FileNotFoundError) or _errno(error) == errno.ENOENT


def cause_of(error: BaseException) -> str:
    """What happened, in one line, and where something can be done about it, what."""
    words, advice = words_of(error), _advice(error)
    return f"{words}; {advice}" if advice else words


def words_of(error: BaseException) -> str:
    """What happened, in one line."""
    return " ".join(redacted(str(error).partition("\n\nDebug source")[0]).split())


def _advice(error: BaseException) -> str:
    number, status = _errno(error), _status(error)
    if number is not None and number in _BY_ERRNO:
        return _BY_ERRNO[number]
    denied = (PermissionDeniedError, UnauthenticatedError)
    if isinstance(error, denied) or status in (401, 403):
        return _FORBIDDEN if _LOCAL in str(error) else _CREDENTIALS
    if status == 404:  # noqa: PLR2004 - HTTP's own number
        return "check the name of the bucket or container"
    return _UNREACHABLE if status is None and is_passing(error) else ""


def _errno(error: BaseException) -> int | None:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    found = _ERRNO.search(str(error)) if isinstance(error, (BaseError, OSError)) else None
    return int(found[1]) if found else None


def _status(error: BaseException) -> int | None:
    answer = getattr(error, "response", None)
    if isinstance(code := getattr(answer, "status_code", None), int):
        return code
    found = _STATUS.search(str(error)) if isinstance(error, (BaseError, OSError)) else None
    return int(found[1]) if found else None
