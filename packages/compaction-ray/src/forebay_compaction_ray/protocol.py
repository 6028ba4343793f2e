"""How messages look between client and gateway: msgpack maps with versions, within bounds.

Every message says which version of the protocol its sender speaks (``v``) and the oldest that it
still understands (``min_v``); keys that a peer does not know are ignored. Nothing is unpickled.
What a gateway refuses is a gRPC status with a small map in the trailing metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self, cast

import msgpack

from forebay_state_api.contract.compaction_service import CompactionFault
from forebay_state_api.errors import ForebayError

SERVICE: Final = "forebay.compaction.v1.CompactionGateway"
"""The gRPC service; its methods are unary."""
VERSION: Final = 1
"""The version of the protocol that this release speaks."""
OLDEST: Final = 1
"""The oldest version that it understands."""
MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""A longer message is refused, unread."""
REFUSAL_KEY: Final = "forebay-refusal-bin"
"""The trailing metadata that says why a request was refused."""
METHODS: Final = (
    "Hello",
    "Submit",
    "Poll",
    "Abort",
    "Release",
    "Describe",
    "Check",
    "Scale",
    "Drain",
    "Stop",
)
"""All methods; the last three ask for the administrator's token where there is one."""
ADMIN_METHODS: Final = frozenset({"Scale", "Drain", "Stop"})

_DEPTH_HINT: Final = 100_000
"""Most elements of one list or map."""


class MalformedMessageError(ForebayError):
    """A message is no map of msgpack within the bounds.

    Operator action: something else than Forebay listens or talks at the address.
    """


class RefusedError(ForebayError):
    """A gateway refused a request.

    Who acts: see ``fault``; a transient refusal (a full queue, a drain) goes away by itself.
    """

    def __init__(
        self,
        fault: CompactionFault,
        code: str,
        message: str,
        *,
        retry_after_s: float = 0.0,
    ) -> None:
        """``code`` is a word for programs, ``message`` a sentence for people."""
        super().__init__(message)
        self.fault = fault
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s

    def to_plain(self) -> dict[str, Any]:
        """Return what the trailing metadata hold."""
        return {
            "fault": self.fault.value,
            "code": self.code,
            "message": self.message,
            "retry_after_s": self.retry_after_s,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Return the refusal that `to_plain` described."""
        try:
            fault = CompactionFault(plain["fault"])
            return cls(
                fault,
                str(plain["code"]),
                str(plain["message"]),
                retry_after_s=float(plain.get("retry_after_s", 0.0)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedMessageError(f"a refusal that is none: {error!r}") from error


def permanent(code: str, message: str) -> RefusedError:
    """A refusal that the same request will always meet."""
    return RefusedError(CompactionFault.PERMANENT, code, message)


def transient(code: str, message: str, *, retry_after_s: float = 0.0) -> RefusedError:
    """A refusal that will pass."""
    return RefusedError(CompactionFault.TRANSIENT, code, message, retry_after_s=retry_after_s)


def pack(message: Mapping[str, Any]) -> bytes:
    """Encode a message of this release."""
    plain = {"v": VERSION, "min_v": OLDEST, **message}
    return cast("bytes", msgpack.packb(plain, use_bin_type=True))


def unpack(data: bytes, *, limit: int = MESSAGE_BYTES) -> dict[str, Any]:
    """Decode a message and check that both sides understand each other.

    Raises `MalformedMessageError` for what is no message, `RefusedError` for a peer of a version
    that does not go with this one.
    """
    message = decode(data, limit=limit)
    theirs, their_oldest = message.get("v"), message.get("min_v")
    if not isinstance(theirs, int) or not isinstance(their_oldest, int):
        raise MalformedMessageError("the message does not say its version")
    if theirs < OLDEST or their_oldest > VERSION:
        raise permanent(
            "version",
            f"the peer speaks versions {their_oldest} to {theirs} of the compaction protocol, "
            f"this side {OLDEST} to {VERSION}: upgrade the older side",
        )
    return message


def decode(data: bytes, *, limit: int = MESSAGE_BYTES) -> dict[str, Any]:
    """Decode a map of plain data; raises `MalformedMessageError`."""
    if len(data) > limit:
        raise MalformedMessageError(f"a message of {len(data)} bytes, at most {limit}")
    try:
        message = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            max_array_len=_DEPTH_HINT,
            max_map_len=_DEPTH_HINT,
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise MalformedMessageError(f"a message that cannot be decoded: {error!r}") from error
    if not isinstance(message, dict):
        raise MalformedMessageError(f"a message that is a {type(message).__name__}, not a map")
    return message
