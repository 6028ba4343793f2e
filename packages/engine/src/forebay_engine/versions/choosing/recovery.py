"""Decisions that a person made with ``forebay recover``: which timeline continues.

A decision is an object ``epochs/recovery-<number>``, so that it shows up in the listing of epochs,
which every run makes at its first batch. The decision with the highest number is valid. It applies
to the runs that existed when it was made, not to runs that begin later. No version is deleted.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Self

import attrs

from forebay_engine.versions.format import layout
from forebay_engine.versions.format.folder import OperatorStorage
from forebay_engine.versions.format.markers import VersionListing
from forebay_state_api.contract.checksummed import known_fields, read_sealed, seal
from forebay_state_api.errors import ConfigurationError

if TYPE_CHECKING:
    from forebay_engine.versions.format.epochs import Epochs
    from forebay_state_api.contract.object_storage import ObjectStorage


@attrs.frozen(kw_only=True)
class Recovery:
    """The runs of the chosen timeline, and the abandoned runs."""

    kept: Mapping[str, int]
    """Run → its newest version in the chosen timeline."""
    left: Mapping[str, int]
    """Abandoned run → the last of its versions that still counts."""

    def counted(self, listing: VersionListing) -> VersionListing:
        """Return the part of a version that counts."""
        objects = [m for m in listing.objects if self.counts(m.by.run_key, listing.version)]
        return VersionListing(version=listing.version, objects=objects)

    def counts(self, run_key: str, version: int) -> bool:
        """Return whether a run's part of a version is not abandoned."""
        return version <= self.left.get(run_key, version)

    def keeps(self, run_key: str, version: int) -> bool:
        """Return whether a run's part of a version is in the chosen timeline."""
        return version <= self.kept.get(run_key, 0)

    def leaves(self, run_key: str) -> bool:
        """Return whether a run is abandoned completely."""
        return self.left.get(run_key) == 0

    @classmethod
    def loaded(cls, payload: Mapping[str, Any]) -> Self:
        """Return the decision that ``attrs.asdict`` turned into plain data."""
        return cls(**known_fields(cls, payload))


NOTHING: Final = Recovery(kept={}, left={})


def read_recovery(storage: ObjectStorage, epochs: Epochs) -> Recovery:
    """Return the valid decision (one request, if there was one)."""
    if not epochs.recoveries:
        return NOTHING
    name = _name(max(epochs.recoveries))
    return read_sealed(storage.get(name), f"{name} in {storage.url}", Recovery.loaded)


def put_recovery(storage: ObjectStorage, epochs: Epochs, recovery: Recovery) -> None:
    """Make a decision durable; ``epochs`` are the epochs that it is based on."""
    number = max(epochs.recoveries, default=0) + 1
    if not storage.put_if_absent(_name(number), seal(attrs.asdict(recovery))):
        raise ConfigurationError(
            f"another process has just chosen a timeline of the state in {storage.url}; look again"
        )


def _name(number: int) -> str:
    return f"{layout.EPOCHS}/{layout.RECOVERY}{number:08d}"


def recover_command(storage: ObjectStorage, uid: str) -> str:
    """Return the command that shows the timelines of an operator."""
    if not isinstance(storage, OperatorStorage):
        return "forebay recover"
    query = layout.unescaped(storage.folder.partition("/")[0])
    where = ("--state-dir", storage.root.url, "--query", query, "--uid", uid)
    return shlex.join(("forebay", "recover", *where))
