"""The wire protocol of client and gateway: msgpack maps with versions, of bounded size.

Every message holds the version of the protocol that its sender speaks (``v``) and the oldest that
it understands (``min_v``); a peer ignores unknown keys. Nothing is unpickled. A refusal is a gRPC
status with a small map in the trailing metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self, cast

import msgpack

from forebay_state_api.errors import ForebayError

SERVICE: Final = "forebay.compaction.v1.CompactionGateway"
"""The gRPC service; its methods are unary."""
VERSION: Final = 1
"""The version of the protocol that this release speaks."""
OLDEST: Final = 1
"""The oldest version that it understands."""
MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""Longer messages are refused unread."""
REFUSAL_KEY: Final = "forebay-refusal-bin"
"""The trailing metadata with the reason for a refusal."""
ADMIN_METHODS: Final = frozenset({"Scale", "Drain", "Stop"})
"""Methods that require the administrator's token if there is one."""

_DEPTH_HINT: Final = 100_000
"""Most elements of one list or map."""


class MalformedMessageError(ForebayError):
    """A message is not a msgpack map within the bounds.

    Operator action: check the address; the peer there is not Forebay.
    """


class RefusedError(ForebayError):
    """A gateway refused a request.

    Operator action: see the message; nothing for a full queue or a drain.
    """

    def __init__(self, code: str, message: str) -> None:
        """``code`` is a word for programs, ``message`` a sentence for people."""
        super().__init__(message)
        self.code = code
        self.message = message

    def to_plain(self) -> dict[str, Any]:
        """Return the content of the trailing metadata."""
        return {"code": self.code, "message": self.message}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Return the refusal that `to_plain` described."""
        try:
            return cls(str(plain["code"]), str(plain["message"]))
        except KeyError as error:
            raise MalformedMessageError(f"a malformed refusal: {error!r}") from error


def pack(message: Mapping[str, Any]) -> bytes:
    """Encode a message of this release."""
    plain = {"v": VERSION, "min_v": OLDEST, **message}
    return cast("bytes", msgpack.packb(plain, use_bin_type=True))


def unpack(data: bytes) -> dict[str, Any]:
    """Decode a message and check that both sides understand each other.

    Raises `MalformedMessageError` for data that is not a message, `RefusedError` for a peer of an
    incompatible version.
    """
    message = decode(data)
    theirs, their_oldest = message.get("v"), message.get("min_v")
    if not isinstance(theirs, int) or not isinstance(their_oldest, int):
        raise MalformedMessageError("the message has no version")
    if theirs < OLDEST or their_oldest > VERSION:
        raise RefusedError(
            "version",
            f"the peer speaks versions {their_oldest} to {theirs} of the compaction protocol, "
            f"this side {OLDEST} to {VERSION}: upgrade the older side",
        )
    return message


def decode(data: bytes) -> dict[str, Any]:
    """Decode a map of plain data; raises `MalformedMessageError`."""
    if len(data) > MESSAGE_BYTES:
        raise MalformedMessageError(f"a message of {len(data)} bytes, at most {MESSAGE_BYTES}")
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
