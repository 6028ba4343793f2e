"""The content of stored versions: keys and values, and the sizes of states.

Keys and values are shown only where the operator of the console allows it. Each look-up pins its
version while it reads, as every reader from outside does; of what it read, only sizes are kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_console.watching.sizes import StateSizes
from forebay_engine.versions.format.epochs import RunVersion
from forebay_state_api.contract.backend import Capability
from forebay_state_api.errors import ConfigurationError, CorruptStateError, VersionGoneError
from forebay_state_api.keys import KeyGroupRange
from forebay_state_processor.reading.feed import ChangeFeed
from forebay_state_processor.reading.history_positions import Position, is_stored
from forebay_state_processor.reading.key_text import keys_of
from forebay_state_processor.reading.look_up import found_rows, namespace_of
from forebay_state_processor.reading.snapshot import Snapshot, snapshot_of
from forebay_state_processor.reading.version_choice import OperatorSource

if TYPE_CHECKING:
    from forebay_console.watching.operator import WatchedOperator
    from forebay_state_api.settings import Settings
    from forebay_state_processor.observing import VersionFigures
    from forebay_state_processor.reading.changes import Change
    from forebay_state_processor.reading.rows import StateRow

PART_BYTES: Final = 256_000_000
"""The largest part of a version, of one subtask, that the console compares, or reads for sizes."""
STEP_BYTES: Final = 32_000_000
"""About the bytes after which a comparison looks at the time, if it finds no change before."""
MOST_S: Final = 5.0
"""Seconds after which a comparison ends, even within a part; sizes end with a subtask."""
_INSTEAD: Final = "use forebay state schema --sizes"


@attrs.frozen(kw_only=True)
class KeyContent:
    """The content of one version under a key."""

    key: Any
    key_group: int
    kinds: Mapping[str, str]
    """State → its kind, of all states."""
    rows: Mapping[str, StateRow]
    """State → its row; a state without content is missing."""


@attrs.frozen(kw_only=True)
class Changes:
    """The first changes between two versions."""

    found: Sequence[Change]
    compared: int
    """Number of the `parts` that were compared completely."""
    parts: int
    more: bool
    """Whether there are more changes than were read."""


class ContentReader:
    """Reads content of one operator."""

    def __init__(
        self,
        operator: WatchedOperator,
        settings: Settings,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        stored = operator.stored
        self._known_sizes: Final = operator.sizes
        self._source: Final = OperatorSource(
            storage=operator.storage, query=stored.query, uid=stored.uid, settings=settings
        )
        self._now: Final = now

    def under(self, text: str, namespace: str | None, version: VersionFigures) -> KeyContent:
        """Return a version's content under a key, written as for ``forebay state get``.

        Raises `ConfigurationError` for text that is no key of the stored type.
        """
        with self._opened(version) as snapshot:
            return _content(snapshot, text, namespace)

    def history(
        self, text: str, namespace: str | None, newest_first: Sequence[VersionFigures]
    ) -> Sequence[tuple[VersionFigures, KeyContent]]:
        """Return the versions in which the content under a key changed, the newest first.

        The oldest of the given versions is always among them. Versions that the janitor deletes
        meanwhile are left out.
        """
        found: list[tuple[VersionFigures, KeyContent]] = []
        for version in reversed(newest_first):
            try:
                content = self.under(text, namespace, version)
            except CorruptStateError:  # deleted since it was listed
                continue
            if not found or _values(found[-1][1]) != _values(content):
                found.append((version, content))
        return found[::-1]

    def changes(
        self,
        older: VersionFigures,
        newer: VersionFigures,
        state: str,
        *,
        key: str = "",
        most: int,
    ) -> Changes:
        """Return at most ``most`` changes of a state from one version to another.

        Without a key it reads one part of both versions after another, for `MOST_S`. Raises
        `ConfigurationError` if a subtask of either version holds more than `PART_BYTES`.
        """
        feed = ChangeFeed(self._source, provisional=True)
        with feed.between(_position(older), _position(newer), undo=True) as difference:
            if key:
                keys = keys_of(key, difference.key_codec)
                found = [one for at in keys for one in difference.key_rows(state, at)]
                return Changes(found=found[:most], compared=1, parts=1, more=len(found) > most)
            for version in (older, newer):
                _check_size(version, "compares: name a key, or use forebay state diff")
            parts = _parts(older, newer)
            return self._compared(lambda part: difference.rows(state, key_groups=part), parts, most)

    def _compared(
        self,
        rows: Callable[[KeyGroupRange], Iterator[Change]],
        parts: Sequence[KeyGroupRange],
        most: int,
    ) -> Changes:
        until = self._now() + MOST_S
        found: list[Change] = []
        compared = 0
        for done, change in _steps(rows, parts):
            compared = done
            if change is not None:
                found.append(change)
            if len(found) > most or self._now() > until:
                break
        more = len(found) > most
        return Changes(found=found[:most], compared=compared, parts=len(parts), more=more)

    def sizes(self, number: int, versions: Sequence[VersionFigures]) -> StateSizes:
        """Return the sizes of the states of a version, which is read once for all viewers.

        It is looked for among ``versions``. Raises `ConfigurationError` if it is missing, if it
        has a subtask of more than `PART_BYTES` and its backend reads whole files, or if its
        subtasks are not read after `MOST_S`; `VersionGoneError` if it is not stored any more.
        """
        version = next((one for one in versions if one.version == number), None)
        return self._known_sizes.of(number, version, self._read_sizes)

    def _read_sizes(self, version: VersionFigures) -> StateSizes:
        if not is_stored(self._source.storage, _position(version)):
            raise VersionGoneError(
                f"version {version.version} is not stored any more, only its figures are"
            )
        until = self._now() + MOST_S
        with self._opened(version) as snapshot:
            if Capability.RESIDENT in snapshot.opened.backend.capabilities:
                _check_size(version, f"reads for sizes: {_INSTEAD}")
            found = self._added_up(snapshot, until)
        return StateSizes(version=version.version, backend=snapshot.backend, of_states=found)

    def _added_up(self, snapshot: Snapshot, until: float) -> Mapping[str, int] | None:
        """Add up the sizes of the subtasks' states; ``None`` if the backend does not know them."""
        total = dict.fromkeys(snapshot.states, 0)
        parts = snapshot.opened.parts(snapshot.key_groups)
        for done, part in enumerate(parts):
            if done and self._now() > until:
                raise ConfigurationError(
                    f"timed out: after {MOST_S:.0f} s the sizes of {done} of {len(parts)} subtasks "
                    f"of version {snapshot.version} were read; {_INSTEAD}"
                )
            found = snapshot.state_bytes(key_groups=part)
            if found is None:
                return None
            for name, size in found.items():
                total[name] += size
        return total

    def _opened(self, version: VersionFigures) -> Snapshot:
        at = RunVersion(version=version.version, run_key=version.run_key)
        return snapshot_of(self._source, at)


def _check_size(version: VersionFigures, what_for: str) -> None:
    sizes = [one.figures.counts.get("state_bytes", 0) for one in version.subtasks]
    if max(sizes) > PART_BYTES:
        raise ConfigurationError(
            f"subtasks of version {version.version} hold up to {max(sizes):,} bytes, more than "
            f"the console {what_for}"
        )


def _parts(older: VersionFigures, newer: VersionFigures) -> Sequence[KeyGroupRange]:
    """Return all key groups: the ranges of the version with more subtasks, the large ones cut."""
    finer = max(newer, older, key=lambda one: len(one.subtasks))
    size = max(one.count("state_bytes") or 0 for one in (older, newer))
    most = max(1, STEP_BYTES * finer.max_parallelism // max(1, size))
    return [
        KeyGroupRange(start, min(start + most - 1, subtask.range.end))
        for subtask in finer.subtasks
        for start in range(subtask.range.start, subtask.range.end + 1, most)
    ]


def _steps(
    rows: Callable[[KeyGroupRange], Iterator[Change]], parts: Sequence[KeyGroupRange]
) -> Iterator[tuple[int, Change | None]]:
    """Yield each change, and nothing at the end of each part, with the parts that are done."""
    for done, part in enumerate(parts):
        for change in rows(part):
            yield done, change
        yield done + 1, None


def _content(snapshot: Snapshot, text: str, namespace: str | None) -> KeyContent:
    key, rows = found_rows(snapshot, text, list(snapshot.states), namespace_of(namespace))
    return KeyContent(
        key=key,
        key_group=snapshot.key_group_of(key),
        kinds={name: state.kind for name, state in snapshot.states.items()},
        rows=rows,
    )


def _values(content: KeyContent) -> Mapping[str, Any]:
    return {name: row.value for name, row in content.rows.items()}


def _position(version: VersionFigures) -> Position:
    return Position(version.version, version.run_key)
