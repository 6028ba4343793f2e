"""What a compaction job says and what it leaves behind: plain data for manifests and wires."""

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
    """What to compact. Two runs of one job give the same bytes, but for names below the prefix."""

    id: str
    """Fresh for every submission: the key by which repeated submissions are one."""
    operator: str
    """The operator's directory, relative to the storage that the service was opened with."""
    format: str
    """Which compactor can read the inputs."""
    inputs: Sequence[StateFile]
    """Oldest first, each with the key groups for which it is read; names below ``operator``."""
    output_prefix: str
    """Below ``operator``; ends in ``/``, belongs to this submission alone, is never used again."""
    range: KeyGroupRange
    """The key groups of the subtask that submits."""
    now_us: int
    """The clock that decides what is expired, µs since the epoch."""
    target_bytes: int
    """About how large an output file should become."""
    lease_s: float = 600.0
    """How long the job's owner may stay silent: a service that nobody has asked about the job for
    so long may give it up."""
    heartbeat_s: float = 60.0
    """How often whoever runs the job shows that it does."""
    attempt: int = 1
    """How often this work has been submitted, each time under an id and a prefix of its own."""
    options: Mapping[str, Any] = attrs.field(factory=dict)
    """Plain data of the format's own."""

    @property
    def heartbeat_prefix(self) -> str:
        """What names, below ``operator``, of the objects begin with that say: still at work."""
        return f"{self.output_prefix}heartbeat-"

    @property
    def result_name(self) -> str:
        """Name, below ``operator``, of the object that is written last."""
        return f"{self.output_prefix}result"

    def stored_result(self, storage: ObjectStorage) -> CompactionResult:
        """Return what the job left; ``storage`` is rooted at the operator's directory.

        Raises `ObjectNotFoundError` or `TornObjectError` where the job has not left a result yet,
        `CorruptStateError` for one that was altered.
        """
        name = f"the compaction result {self.result_name} in {storage.url}"
        plain = unseal(storage.get(self.result_name), name)
        try:
            return CompactionResult.from_plain(plain)
        except (KeyError, TypeError, ValueError) as error:
            message = f"{name} is not one: {error!r}"
            raise CorruptStateError(message) from error

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
        """Return the job that `to_plain` described, without what a later release added."""
        inputs = [_file_from_plain(file) for file in plain["inputs"]]
        groups = KeyGroupRange(*plain["range"])
        return cls(**{**known_fields(cls, plain), "inputs": inputs, "range": groups})


@attrs.frozen(kw_only=True)
class CompactionResult:
    """What a compactor made. The client verifies it before it installs the outputs."""

    outputs: Sequence[StateFile]
    """In the order in which a manifest is to name them; may be empty."""
    entries_in: int
    entries_out: int
    entries_dropped: int
    """Overwritten, deleted or expired: ``entries_in == entries_out + entries_dropped``."""
    dropped: Mapping[str, int] = attrs.field(factory=dict)
    """Why, for people: a word → how many of those dropped, as far as the compactor tells."""

    def to_plain(self) -> dict[str, Any]:
        """Return dicts, lists, strings and numbers only."""
        plain = attrs.asdict(self, recurse=False)
        outputs = [_file_to_plain(file) for file in self.outputs]
        return {**plain, "outputs": outputs, "dropped": dict(self.dropped)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> CompactionResult:
        """Return the result that `to_plain` described, without what a later release added."""
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
    """Return the file that `_file_to_plain` described."""
    told = known_fields(StateFile, plain)
    return StateFile(**{**told, "range": KeyGroupRange(*plain["range"])})
