"""The key columns of an operator: state that is kept under one column is of no use to another.

A version's manifests name the columns and the kinds of their values. State goes on only under the
same columns: the type of a key says nothing about which of two columns of strings it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Self

import attrs

from forebay_state_api.errors import StateMigrationError

if TYPE_CHECKING:
    from forebay_engine.versions.format.manifest import Manifest

_INPUTS: Final = ("", " of the second input")


@attrs.frozen
class KeyColumn:
    """One column of a key."""

    name: str = ""
    """The column's name; empty if it is unknown, because a callable makes the keys or the state was
    imported."""
    kind: str = ""
    """The kind of its values (`keys.kind_of`); empty if it is not known."""
    former: str = ""
    """The name that it had in the stored state, if it was renamed since."""

    def __str__(self) -> str:
        """Show name and kind; a name that a terminal would obey is quoted."""
        name = self.name if self.name.isprintable() else repr(self.name)
        return " ".join(filter(None, (name, self.kind))) or "?"


@attrs.frozen
class KeyedBy:
    """The key columns of each keyed input."""

    inputs: Sequence[Sequence[KeyColumn]] = ()
    """The key columns of each input; empty if they are unknown."""

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Return the key columns under which a version's keyed state is kept, if it has any."""
        stored = manifest.keyed_by if manifest.descriptions else ()
        return cls([[KeyColumn(name, kind) for name, kind in columns] for columns in stored])

    def plain(self) -> list[list[list[str]]]:
        """Return the names and kinds as plain data, for a manifest."""
        return [[[one.name, one.kind] for one in columns] for columns in self.inputs]

    def check(self, manifests: Iterable[Manifest], uid: str) -> None:
        """Raise `StateMigrationError` unless state of these manifests goes on under these columns.

        Unknown columns on either side match.
        """
        for manifest in manifests:
            pairs = zip(KeyedBy.of(manifest).inputs, self.inputs, _INPUTS, strict=False)
            for stored, now, which in pairs:
                _check(stored, now, f"operator {uid!r}: the state is kept", which)

    def known_from(self, manifests: Sequence[Manifest]) -> Self:
        """Return these columns, with what only the manifests know about them."""
        found = (KeyedBy.of(manifest).inputs for manifest in manifests)
        stored = next(filter(None, found), ())
        inputs = [
            _filled(now, stored[side]) if side < len(stored) else now
            for side, now in enumerate(self.inputs)
        ]
        return attrs.evolve(self, inputs=inputs or stored)


UNKNOWN: Final = KeyedBy()


def _check(stored: Sequence[KeyColumn], now: Sequence[KeyColumn], kept: str, which: str) -> None:
    if len(stored) != len(now) or any(map(_of_another_kind, stored, now)):
        raise StateMigrationError(
            f"{kept} under the key columns{which} ({_shown(stored)}), and they are now "
            f"({_shown(now)}): nothing that is stored would be found. Key by the old columns, cast "
            "to their old types, or begin with empty state under another uid"
        )
    for before, column in zip(stored, now, strict=True):
        if before.name and column.name and before.name not in (column.name, column.former):
            raise StateMigrationError(
                f"{kept} under the key column{which} {before.name!r}, and that column is now "
                f"{column.name!r}: a value of one would continue with the state of the other. If "
                f"the column was renamed, pass key_alias={{{column.name!r}: {before.name!r}}}; if "
                "rows have another key now, begin with empty state under another uid"
            )


def _of_another_kind(stored: KeyColumn, now: KeyColumn) -> bool:
    return bool(stored.kind and now.kind and stored.kind != now.kind)


def _shown(columns: Sequence[KeyColumn]) -> str:
    return ", ".join(map(str, columns))


def _filled(now: Sequence[KeyColumn], stored: Sequence[KeyColumn]) -> list[KeyColumn]:
    return [
        attrs.evolve(column, name=column.name or before.name, kind=column.kind or before.kind)
        for column, before in zip(now, stored, strict=True)
    ]
