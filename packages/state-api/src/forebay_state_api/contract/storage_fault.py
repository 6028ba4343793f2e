"""Classify errors of stores: whether a retry may succeed, and what an operator can do."""

from __future__ import annotations

import errno
from typing import Final, Self

import attrs

from forebay_state_api.settings.redaction import redacted

__all__ = ["CREDENTIALS", "NO_PERMISSION", "StorageFault", "words_of"]

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
"""Operating system errors that a retry may overcome; a full disk is not among them."""
_PASSING_STATUS: Final = frozenset({408, 425, 429})

NO_PERMISSION: Final = "let the user that the executors run as read and write there"
"""The remedy if the user of a process may not use a file."""
CREDENTIALS: Final = (
    "check the credentials of the executors (environment, or spark.forebay.storage.*) and what "
    "they permit"
)
"""The remedy if a store refuses the credentials."""
_UNREACHABLE: Final = "check the address, and that it can be reached from the executors"
_BY_ERRNO: Final = {
    errno.EACCES: NO_PERMISSION,
    errno.EPERM: NO_PERMISSION,
    errno.EROFS: "the volume is mounted read-only",
    errno.ENOSPC: "make room on the volume, or move the state directory to a larger one",
    errno.EDQUOT: "raise the quota, or move the state directory",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f) of the executors",
    errno.EMFILE: "raise the limit of open files (ulimit -n) of the executors",
}
_BY_STATUS: Final = {
    401: CREDENTIALS,
    403: CREDENTIALS,
    404: "check the name of the bucket or container",
}


@attrs.frozen
class StorageFault:
    """The classification of a store's error."""

    words: str
    """A one-line description, without passwords and signatures."""
    transient: bool
    """Whether the error is transient, so that the same request may succeed later."""
    advice: str
    """Advice for an operator; empty if there is none."""

    @property
    def cause(self) -> str:
        """The description, followed by the advice if there is any."""
        return f"{self.words}; {self.advice}" if self.advice else self.words

    @classmethod
    def of(
        cls,
        error: BaseException,
        *,
        number: int | None = None,
        status: int | None = None,
        transient: bool | None = None,
        denied: str = "",
    ) -> Self:
        """Classify an error by the codes in errors of Python and of HTTP clients.

        A store whose errors carry codes differently passes the operating system's ``number``, the
        HTTP ``status``, and, where neither decides, whether it is ``transient``. ``denied`` is
        the advice for a lack of permission.
        """
        if number is None and isinstance(error, OSError):
            number = error.errno
        answer = getattr(getattr(error, "response", None), "status_code", None)
        if status is None and isinstance(answer, int):
            status = answer
        if transient is None:
            transient = _is_transient(error, number, status)
        advice = _BY_ERRNO.get(number or 0) or denied or _BY_STATUS.get(status or 0, "")
        if not advice and transient and status is None:
            advice = _UNREACHABLE
        return cls(words_of(error), transient, advice)


def _is_transient(error: BaseException, number: int | None, status: int | None) -> bool:
    if number is not None:
        return number in _PASSING
    if status is not None:
        return status >= 500 or status in _PASSING_STATUS  # noqa: PLR2004 - HTTP's own numbers
    return isinstance(error, (ConnectionError, TimeoutError))


def words_of(error: BaseException) -> str:
    """Return the error's text on one line, without passwords and signatures."""
    return " ".join(redacted(str(error).partition("\n\nDebug source")[0]).split())
