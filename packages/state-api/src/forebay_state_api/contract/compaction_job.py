"""The description and the result of a compaction job: plain data for manifests and messages."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import attrs
import msgpack

from forebay_state_api.contract.checksummed import typed_fields, unseal
from forebay_state_api.contract.files import StateFile
from forebay_state_api.errors import CorruptStateError
from forebay_state_api.keys import KeyGroupRange

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage

__all__ = ["CompactionJob", "CompactionResult"]

_log = logging.getLogger(__name__)

_HEARTBEAT: Final = "heartbeat-"
_OF_A_SUBMISSION: Final = ("id", "attempt", "lease_s", "heartbeat_s")
"""Fields that do not affect the outputs."""


@attrs.frozen(kw_only=True)
class CompactionJob:
    """One compaction.

    It may run any number of times, anywhere, at the same time. Each run has a folder of its own
    below the prefix (see `forebay_engine.compaction.performing`), and the outputs of all runs
    are equally right. The first run to store its result wins.
    """

    id: str
    """A new id for every submission; repeated calls with one id count as one submission."""
    operator: str
    """The operator's directory, relative to the storage that the service was opened with."""
    format: str
    """The file format, which selects the compactor."""
    inputs: Sequence[StateFile]
    """The input files, oldest first, each with the key groups to read; names below ``operator``."""
    output_prefix: str
    """The prefix of output names, below ``operator``: a new `file_names.compaction_prefix` each
    time. A compactor
    gets a job with the prefix of its run."""
    range: KeyGroupRange
    """The key groups of the subtask that submits."""
    now_us: int
    """The time by which data expire, µs since the epoch."""
    target_bytes: int
    """Approximate size of an output file."""
    lease_s: float = 600.0
    """How long, in seconds, the job's owner may stay silent: a service may give up a job whose
    status was not polled for longer."""
    heartbeat_s: float = 60.0
    """Seconds between the heartbeats of the process that runs the job."""
    attempt: int = 1
    """The number of submissions of this work so far, each with its own id and prefix."""
    options: Mapping[str, Any] = attrs.field(factory=dict)
    """Plain data that the format defines."""

    @property
    def claim_name(self) -> str:
        """Name, below ``operator``, of the object that is written first.

        It holds the `digest` of the job that owns the prefix.
        """
        return f"{self.output_prefix}claim"

    @property
    def result_name(self) -> str:
        """Name, below ``operator``, of the object that is written last."""
        return f"{self.output_prefix}result"

    @property
    def digest(self) -> str:
        """SHA-256, in hex, of all that decides the outputs.

        It covers every field except `id`, `attempt`, `lease_s` and `heartbeat_s`.
        """
        plain = {k: v for k, v in self.to_plain().items() if k not in _OF_A_SUBMISSION}
        packed = cast("bytes", msgpack.packb(_in_order(plain), use_bin_type=True))
        return hashlib.sha256(packed).hexdigest()

    def heartbeat_name(self, number: int) -> str:
        """Return the name, below ``operator``, of a run's heartbeat object, numbered from 1."""
        return f"{self.output_prefix}{_HEARTBEAT}{number:06d}"

    def heartbeats(self, storage: ObjectStorage) -> int:
        """Count the heartbeats of all runs; ``storage`` is rooted at the operator's directory."""
        names = (info.name.rpartition("/")[2] for info in storage.list(self.output_prefix))
        return sum(name.startswith(_HEARTBEAT) for name in names)

    def stored_result(self, storage: ObjectStorage) -> CompactionResult:
        """Return the job's stored result; ``storage`` is rooted at the operator's directory.

        Raises `ObjectNotFoundError` or `TornObjectError` if the job has not written a result yet,
        `CorruptStateError` for a result that was altered. The result of a job with another `digest`
        counts as none; the log has a warning.
        """
        name = f"the compaction result {self.result_name} in {storage.url}"
        plain = unseal(storage.get(self.result_name), name)
        if plain.get("job_digest") != self.digest:
            _log.warning("%s is ignored: it belongs to a job with another description", name)
            raise storage.absent(self.result_name)
        try:
            return CompactionResult.from_plain(plain)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptStateError(f"{name} cannot be decoded: {error!r}") from error

    def to_plain(self) -> dict[str, Any]:
        """Return dicts, lists, strings and numbers only."""
        plain = attrs.asdict(self, recurse=False)
        return {
            **plain,
            "inputs": [_file_to_plain(file) for file in self.inputs],
            "range": [self.range.start, self.range.end],
            "options": dict(self.options),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> CompactionJob:
        """Decode the result of `to_plain`; ignore fields that a later release added."""
        inputs = _files_from_plain(plain["inputs"])
        groups = _range_from_plain(plain["range"])
        return cls(**{**typed_fields(cls, plain), "inputs": inputs, "range": groups})


@attrs.frozen(kw_only=True)
class CompactionResult:
    """The outputs of a compactor. The client verifies them before it installs them."""

    outputs: Sequence[StateFile]
    """The output files, in the order in which a manifest must name them; may be empty."""
    entries_in: int
    entries_out: int
    entries_dropped: int
    """Entries overwritten, deleted or expired: ``entries_in == entries_out + entries_dropped``."""
    dropped: Mapping[str, int] = attrs.field(factory=dict)
    """Reason, in a word for people → number of dropped entries, as far as the compactor knows."""
    job_digest: str = ""
    """`CompactionJob.digest` of the job; set when the result is stored, not by compactors."""

    def to_plain(self) -> dict[str, Any]:
        """Return dicts, lists, strings and numbers only."""
        plain = attrs.asdict(self, recurse=False)
        outputs = [_file_to_plain(file) for file in self.outputs]
        return {**plain, "outputs": outputs, "dropped": dict(self.dropped)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> CompactionResult:
        """Decode the result of `to_plain`; ignore fields that a later release added."""
        outputs = _files_from_plain(plain["outputs"])
        return cls(**{**typed_fields(cls, plain), "outputs": outputs})


def _file_to_plain(file: StateFile) -> dict[str, Any]:
    """Return the file as dicts, lists, strings and numbers only."""
    return {
        "name": file.name,
        "size": file.size,
        "range": [file.range.start, file.range.end],
        "meta": dict(file.meta),
    }


def _files_from_plain(plain: Any) -> list[StateFile]:
    """Decode a list of results of `_file_to_plain`."""
    if not isinstance(plain, list):
        raise TypeError(f"the files are {type(plain).__name__}, not a list")
    return [_file_from_plain(file) for file in plain]


def _range_from_plain(plain: Any) -> KeyGroupRange:
    start, end = plain
    if type(start) is not int or type(end) is not int:
        raise TypeError(f"the key groups are {start!r} to {end!r}")
    return KeyGroupRange(start, end)


def _file_from_plain(plain: Mapping[str, Any]) -> StateFile:
    fields = typed_fields(StateFile, plain)
    return StateFile(**{**fields, "range": _range_from_plain(plain["range"]), "data": None})


def _in_order(value: Any) -> Any:
    """Return plain data with all mappings in the order of their packed keys."""
    if isinstance(value, Mapping):
        ordered = sorted(value.items(), key=lambda item: cast("bytes", msgpack.packb(item[0])))
        return {key: _in_order(below) for key, below in ordered}
    if isinstance(value, list | tuple):
        return [_in_order(below) for below in value]
    return value
