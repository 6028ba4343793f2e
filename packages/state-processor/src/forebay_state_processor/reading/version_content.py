"""The content of one pinned version: its states, their types, and their stored cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import attrs

from forebay_engine.versions.format.key_types import key_type_of
from forebay_state_api.codecs import ValueCodec
from forebay_state_api.contract.backend import NO_TIME
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.keys import KeyGroupRange
from forebay_state_processor.reading.operator_state_rows import (
    OperatorStateInfo,
    operator_states_of,
)
from forebay_state_processor.reading.rows import RowMaker
from forebay_state_processor.reading.stored_states import StateInfo, states_of

if TYPE_CHECKING:
    from forebay_state_api.contract.backend import TableSpec
    from forebay_state_api.contract.changes import Changes
    from forebay_state_processor.reading.opened_version import OpenedVersion

KEYS: Final = 4_096
"""Number of keys in a page of a scan."""


@attrs.frozen
class VersionPart:
    """The part of a version that one of several readers reads, at the time of the whole version."""

    key_groups: KeyGroupRange
    now_us: int | None
    """`VersionContent.now_us` of the whole version."""


class VersionContent:
    """The states of one pinned version, and the cells of each."""

    def __init__(
        self, opened: OpenedVersion, *, show_expired: bool, part: VersionPart | None = None
    ) -> None:
        """``show_expired`` includes data that have expired.

        ``part`` is what was opened, if that is not the whole version.
        """
        self.opened: Final = opened
        manifests = self.manifests = opened.reader.manifests
        self.uid: Final = manifests[0].uid
        self.version: Final = opened.reader.version
        self.run: Final = opened.reader.run_key or ""
        """The key of the run that made the version: with `version` it names one position."""
        self.max_parallelism: Final = manifests[0].made.max_parallelism
        """The number of key groups."""
        self.states: Final[Mapping[str, StateInfo]] = states_of(manifests)
        """The keyed states by name."""
        self.operator_states: Final[Mapping[str, OperatorStateInfo]] = operator_states_of(manifests)
        times = (m.now_us for m in manifests if m.now_us != NO_TIME)
        self.now_us: Final = max(times, default=None) if part is None else part.now_us
        """The time of the version's batch, in µs, by which data expire; ``None`` if unknown."""
        self.stored_key: Final = key_type_of(manifests)
        """The type of keys; ``None`` if no keyed state is stored."""
        self.key_codec: Final[ValueCodec | None] = (
            None if self.stored_key is None else self.stored_key.codec()
        )
        """The codec of keys; ``None`` if no keyed state is stored."""
        self.key_groups: Final = KeyGroupRange(0, self.max_parallelism - 1)
        """All key groups."""
        self._show_expired: Final = show_expired

    @property
    def bytes(self) -> int:
        """The bytes that the version occupies."""
        return self.opened.reader.bytes

    @property
    def bytes_per_group(self) -> float:
        """The stored bytes of a key group, on average; at least 1."""
        ranges = (one.made.range for one in self.manifests)
        groups = sum(each.end - each.start + 1 for each in ranges)
        return max(self.bytes / max(groups, 1), 1)

    def state_bytes(self, *, key_groups: KeyGroupRange | None = None) -> dict[str, int] | None:
        """Return state → its stored bytes, including overwritten data.

        Returns ``None`` if the backend does not know. Opens the version: heap reads its files, lsm
        their indexes.
        """
        total = dict.fromkeys(self.states, 0)
        for part in self.opened.parts(key_groups or self.key_groups):
            with self.opened.scanning(part) as backend:
                found = backend.stored_bytes()
            if found is None:
                return None
            for name in total:
                total[name] += found.get(name, 0)
        return total

    def state(self, name: str) -> StateInfo:
        """Return a keyed state; the `ConfigurationError` for an unknown one lists the others."""
        if name not in self.states:
            known = ", ".join(map(repr, self.states)) or "none"
            raise ConfigurationError(
                f"version {self.version} of operator {self.uid!r} has no state {name!r}; its "
                f"states: {known}"
            )
        return self.states[name]

    def exported(
        self, spec: TableSpec, key_groups: KeyGroupRange | None = None
    ) -> Iterator[Changes]:
        """Yield the stored cells of a state, as `Table.export` does, with what has expired."""
        for part in self.opened.parts(key_groups or self.key_groups):
            with self.opened.scanning(part, [spec]) as backend:
                for changes in backend.export(spec, KEYS):
                    self.opened.check_open()
                    yield changes

    def row_maker(self, info: StateInfo) -> RowMaker:
        """Return the maker of rows from a state's cells."""
        return RowMaker(info, self.expired_until(info))

    def expired_until(self, info: StateInfo) -> int | None:
        """Return the newest time of last access, in µs, that has expired.

        Returns ``None`` if nothing has.
        """
        if self._show_expired or self.now_us is None or info.expiry is None:
            return None
        return info.expiry.until_us(self.now_us)
