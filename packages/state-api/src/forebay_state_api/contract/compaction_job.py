"""The description and the result of a compaction job: plain data for manifests and messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from forebay_state_api.contract.checksummed import known_fields, unseal
from forebay_state_api.contract.files import StateFile
from forebay_state_api.errors import CorruptStateError
from forebay_state_api.keys import KeyGroupRange

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage


@attrs.frozen(kw_only=True)
class CompactionJob:
    """One compaction. Two runs of it write the same bytes; only names below the prefix differ."""

    id: str
    """Fresh for every submission; repeated calls with one id count as one submission."""
    operator: str
    """The operator's directory, relative to the storage that the service was opened with."""
    format: str
    """The file format, which selects the compactor."""
    inputs: Sequence[StateFile]
    """Oldest first, each with the key groups for which it is read; names below ``operator``."""
    output_prefix: str
    """Below ``operator``; ends in ``/``, is used by this submission only, and never again."""
    range: KeyGroupRange
    """The key groups of the subtask that submits."""
    now_us: int
    """The time by which data expire, µs since the epoch."""
    target_bytes: int
    """Approximate size of an output file."""
    lease_s: float = 600.0
    """How long, in seconds, the job's owner may stay silent: a service may give up a job whose
    status nobody has polled for longer."""
    heartbeat_s: float = 60.0
    """Seconds between the heartbeats of the process that runs the job."""
    attempt: int = 1
    """The number of submissions of this work so far, each with its own id and prefix."""
    options: Mapping[str, Any] = attrs.field(factory=dict)
    """Plain data that the format defines."""

    @property
    def heartbeat_prefix(self) -> str:
        """Prefix, below ``operator``, of the names of heartbeat objects."""
        return f"{self.output_prefix}heartbeat-"

    @property
    def result_name(self) -> str:
        """Name, below ``operator``, of the object that is written last."""
        return f"{self.output_prefix}result"

    def stored_result(self, storage: ObjectStorage) -> CompactionResult:
        """Return the job's stored result; ``storage`` is rooted at the operator's directory.

        Raises `ObjectNotFoundError` or `TornObjectError` if the job has not written a result yet,
        `CorruptStateError` for a result that was altered.
        """
        name = f"the compaction result {self.result_name} in {storage.url}"
        plain = unseal(storage.get(self.result_name), name)
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
        """Inverse of `to_plain`; ignores fields that a later release added."""
        inputs = [_file_from_plain(file) for file in plain["inputs"]]
        groups = KeyGroupRange(*plain["range"])
        return cls(**{**known_fields(cls, plain), "inputs": inputs, "range": groups})


@attrs.frozen(kw_only=True)
class CompactionResult:
    """The outputs of a compactor. The client verifies them before it installs them."""

    outputs: Sequence[StateFile]
    """In the order in which a manifest must name them; may be empty."""
    entries_in: int
    entries_out: int
    entries_dropped: int
    """Entries overwritten, deleted or expired: ``entries_in == entries_out + entries_dropped``."""
    dropped: Mapping[str, int] = attrs.field(factory=dict)
    """Reason, in a word for people → number of dropped entries, as far as the compactor knows."""

    def to_plain(self) -> dict[str, Any]:
        """Return dicts, lists, strings and numbers only."""
        plain = attrs.asdict(self, recurse=False)
        outputs = [_file_to_plain(file) for file in self.outputs]
        return {**plain, "outputs": outputs, "dropped": dict(self.dropped)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> CompactionResult:
        """Inverse of `to_plain`; ignores fields that a later release added."""
        outputs = [_file_from_plain(file) for file in plain["outputs"]]
        return cls(**{**known_fields(cls, plain), "outputs": outputs})


def _file_to_plain(file: StateFile) -> dict[str, Any]:
    """Return the file as dicts, lists, strings and numbers only."""
    return {
        "name": file.name,
        "size": file.size,
        "range": [file.range.start, file.range.end],
        "meta": dict(file.meta),
    }


def _file_from_plain(plain: Mapping[str, Any]) -> StateFile:
    """Inverse of `_file_to_plain`."""
    fields = known_fields(StateFile, plain)
    return StateFile(**{**fields, "range": KeyGroupRange(*plain["range"])})
