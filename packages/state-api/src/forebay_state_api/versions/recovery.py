"""What a person decided with ``forebay recover``: which timeline goes on, and which do not.

The decision is an object ``epochs/recovery-<number>``, so that the list of epochs, which every run
makes at its first batch, shows it; the one with the highest number holds. It speaks of the runs
that were there: a run that begins later is not left behind by it. No version is deleted.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Self

import attrs

from forebay_state_api.contract.checksummed import known_fields, read_sealed, seal
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.versions import layout
from forebay_state_api.versions.folder import OperatorStorage
from forebay_state_api.versions.markers import VersionListing

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_api.versions.epochs import Epochs


@attrs.frozen(kw_only=True)
class Recovery:
    """The runs of the chosen timeline, and those left behind."""

    kept: Mapping[str, int]
    """Run → its newest version in the chosen timeline."""
    left: Mapping[str, int]
    """Run → its versions above this one do not count."""

    def counted(self, listing: VersionListing) -> VersionListing:
        """What of a version counts."""
        objects = [m for m in listing.objects if self.counts(m.by.run_key, listing.version)]
        return VersionListing(version=listing.version, objects=objects)

    def counts(self, run_key: str, version: int) -> bool:
        """Whether what a run made of a version is not left behind."""
        return version <= self.left.get(run_key, version)

    def keeps(self, run_key: str, version: int) -> bool:
        """Whether what a run made of a version is in the chosen timeline."""
        return version <= self.kept.get(run_key, 0)

    def leaves(self, run_key: str) -> bool:
        """Whether nothing counts that a run made."""
        return self.left.get(run_key) == 0

    @classmethod
    def loaded(cls, payload: Mapping[str, Any]) -> Self:
        """Inverse of ``attrs.asdict``."""
        return cls(**known_fields(cls, payload))


NOTHING: Final = Recovery(kept={}, left={})


def read_recovery(storage: ObjectStorage, epochs: Epochs) -> Recovery:
    """The decision that holds (one request, if there was one)."""
    if not epochs.recoveries:
        return NOTHING
    name = _name(max(epochs.recoveries))
    return read_sealed(storage.get(name), f"{name} in {storage.url}", Recovery.loaded)


def put_recovery(storage: ObjectStorage, epochs: Epochs, recovery: Recovery) -> None:
    """Make a decision durable; ``epochs`` are those that it was made upon."""
    number = max(epochs.recoveries, default=0) + 1
    if not storage.put_if_absent(_name(number), seal(attrs.asdict(recovery))):
        msg = f"somebody else has just decided for the state in {storage.url}; look again"
        raise ConfigurationError(msg)


def _name(number: int) -> str:
    return f"{layout.EPOCHS}/{layout.RECOVERY}{number:08d}"


def recover_command(storage: ObjectStorage, uid: str) -> str:
    """The command that shows the timelines of an operator."""
    if not isinstance(storage, OperatorStorage):
        return "forebay recover"
    query = layout.unescaped(storage.folder.partition("/")[0])
    where = ("--state-dir", storage.root.url, "--query", query, "--uid", uid)
    return shlex.join(("forebay", "recover", *where))
