"""The sealed object that holds answers, and the bytes of one answer.

An object is `seal` of a mapping: the format, the names joined, the length of each value, and the
values joined. Its checksum covers all of it, and an answer of a damaged object is not found.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
import msgpack

from forebay_engine.journal.naming import DIGEST_BYTES
from forebay_state_api.codecs.plain import dump_any, load_any
from forebay_state_api.contract.checksummed import read_sealed, seal

FORMAT: Final = 1
_IMMUTABLE: Final = frozenset({type(None), bool, int, float, str, bytes})
"""Types of answers that are what decoding their bytes gives."""

Answer = tuple[bytes, bytes]
"""The name of a call, and the bytes of its answer."""


@attrs.frozen
class StoredAnswers:
    """The content of one object."""

    names: bytes
    """The names, `DIGEST_BYTES` each, joined."""
    lengths: Sequence[int]
    """The length of each value."""
    values: bytes
    """The values, joined."""

    def __len__(self) -> int:
        return len(self.lengths)


def sealed_answers(answers: Sequence[Answer]) -> bytes:
    """Encode answers as one object."""
    lengths = [len(value) for _, value in answers]
    return seal(
        {
            "answers": FORMAT,
            "names": b"".join(name for name, _ in answers),
            "lengths": struct.pack(f">{len(lengths)}I", *lengths),
            "values": b"".join(value for _, value in answers),
        }
    )


def stored_answers(data: bytes, name: str) -> StoredAnswers:
    """Decode an object; raises `CorruptStateError` if it is damaged, or of an unknown format."""
    return read_sealed(data, name, _answers)


def _answers(payload: dict[str, Any]) -> StoredAnswers:
    if payload["answers"] != FORMAT:
        raise ValueError(f"answers of format {payload['answers']}, not {FORMAT}")
    packed, names, values = payload["lengths"], payload["names"], payload["values"]
    lengths = struct.unpack(f">{len(packed) // 4}I", packed)
    if len(names) != DIGEST_BYTES * len(lengths) or len(values) != sum(lengths):
        raise ValueError("answers whose lengths do not add up")
    return StoredAnswers(names, lengths, values)


class AnswerEncoder:
    """Encodes the answers of one task attempt, on one thread."""

    def __init__(self) -> None:
        self._pack: Callable[[Any], bytes] = msgpack.Packer(strict_types=True).pack

    def encoded(self, call: str, answer: Any) -> bytes:
        """Encode an answer; raises `TypeError`, which begins with ``call``, for no plain value."""
        try:
            return self._pack(answer)
        except Exception:  # noqa: BLE001 - a value of an extension type, or one that is refused
            return _dumped(call, answer)


def _dumped(call: str, answer: Any) -> bytes:
    try:
        return dump_any(answer)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise TypeError(
            f"{call}: the answer {answer!r:.200} cannot be kept: {error}. Return plain values: "
            "text, numbers, bytes, dates, and lists, tuples and dicts of them, as response.json() "
            "does"
        ) from error


def decoded(data: bytes) -> Any:
    """Decode the bytes of `AnswerEncoder.encoded`."""
    return load_any(data)


def as_replayed(answer: Any, data: bytes) -> Any:
    """Return an answer as a later attempt will get it from its bytes."""
    if type(answer) in _IMMUTABLE:
        return answer
    if type(answer) is dict and _IMMUTABLE.issuperset(map(type, answer.values())):
        return dict(answer)  # what decoding makes, in a fifth of the time; its keys are immutable
    return load_any(data)
