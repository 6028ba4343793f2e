"""Read the rows of tables as the cells and timers that are stored.

One state has the columns of `Snapshot.to_arrow`, several states have the columns of
`Snapshot.table`, and timers have the columns of `Snapshot.timer_table`. ``namespace``, and times of
last access, may be left out. Key groups and times of expiry are ignored, since they follow from the
other columns.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import attrs

from forebay_engine.versions.format.namespaces import canonical_namespace, packed_namespace
from forebay_engine.versions.format.timer_tables import DOMAINS
from forebay_state_api.contract.changes import ABSENT
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.keys import canonical_key, key_group_of
from forebay_state_processor.importing.cell_content import content_of, instant_us
from forebay_state_processor.importing.plain_values import null_stays, plain_value_of
from forebay_state_processor.importing.subtask_part import ImportedTimer
from forebay_state_processor.importing.tables import TableLayout
from forebay_state_processor.reading.columns import StateColumns, key_names, state_columns
from forebay_state_processor.reading.json_keys import value_from_json
from forebay_state_processor.reading.rows import time_of

if TYPE_CHECKING:
    from forebay_state_api.codecs import ValueCodec
    from forebay_state_processor.reading.stored_states import StateInfo

MISFITS: Final = (TypeError, ValueError, ArithmeticError, KeyError, RecursionError)
"""The errors of `RowReader.read` for a row that does not fit."""
_DOMAINS: Final = {domain.value: number for number, domain in enumerate(DOMAINS)}


@attrs.frozen
class ImportedRow:
    """The content of one row."""

    key: Any
    namespace: Any
    group: int
    content: Any
    """The content of each state, or ``ABSENT``; in a table of timers an `ImportedTimer`."""


class KeyReader:
    """Reads the columns of keys and namespaces."""

    def __init__(self, codec: ValueCodec, groups: int) -> None:
        """``codec`` encodes keys; ``groups`` is the number of key groups."""
        self.names: Final = key_names(codec)
        self._codec: Final = codec
        self._groups: Final = groups
        description = codec.description
        parts = description["elements"] if description["type"] == "tuple" else [description]
        self._plain: Final = [null_stays(plain_value_of(part)) for part in parts]

    def read(self, row: Mapping[str, Any]) -> tuple[Any, Any, int]:
        """Return key, namespace and key group.

        `MISFITS` for a value that is no key of this operator.
        """
        parts = [plain(row[name]) for plain, name in zip(self._plain, self.names, strict=True)]
        key = canonical_key(self._codec.admit(tuple(parts) if len(parts) > 1 else parts[0]))
        namespace = row.get("namespace")
        if namespace is not None:
            namespace = canonical_namespace(value_from_json(namespace))
        return key, namespace, key_group_of(key, self._groups)

    def place(self, row: ImportedRow) -> bytes:
        """Return bytes that are equal for equal keys and namespaces, and for no others."""
        key = self._codec.pack_one(row.key)
        return len(key).to_bytes(4, "big") + key + packed_namespace(row.namespace)


class RowReader(abc.ABC):
    """Reads the rows of one table."""

    def __init__(self, what: str, keys: KeyReader) -> None:
        """``what`` is the table, for messages."""
        self.what: Final = what
        self.keys: Final = keys

    @abc.abstractmethod
    def kept(self, columns: Sequence[str]) -> list[str]:
        """Return the columns that are read; `ConfigurationError` if some are missing or unknown."""

    @abc.abstractmethod
    def read(self, row: Mapping[str, Any]) -> ImportedRow:
        """Return the content of a row; `MISFITS` if it does not fit."""

    @abc.abstractmethod
    def place(self, row: ImportedRow) -> bytes:
        """Return bytes that only one row of the table may have."""

    def shown(self, row: ImportedRow) -> str:
        """Return the place of a row, for messages."""
        within = "" if row.namespace is None else f" with namespace {row.namespace!r}"
        return f"the key {row.key!r}{within}"

    def _checked(
        self,
        columns: Sequence[str],
        needed: Sequence[str],
        *,
        optional: Sequence[str] = (),
        ignored: Sequence[str] = (),
    ) -> list[str]:
        may = ["namespace", *optional, "key_group", *ignored]
        twice = len(set(columns)) < len(columns)
        if twice or not {*needed} <= {*columns} <= {*needed, *may}:
            raise ConfigurationError(
                f"{self.what} has the columns {', '.join(columns)}; it needs {', '.join(needed)}, "
                f"and may have {', '.join(may)}, each once. forebay state export (without --flat) "
                "writes such tables"
            )
        known = {*needed, "namespace", *optional}
        return [name for name in columns if name in known]


_OF_ONE: Final = StateColumns("value", "written", "expires")
"""The columns of a table of one state."""


class StateRows(RowReader):
    """Reads a table of one or several states."""

    def __init__(  # noqa: PLR0917 - the class methods pass them
        self,
        what: str,
        keys: KeyReader,
        infos: Sequence[StateInfo],
        columns: Sequence[StateColumns],
        now_us: int,
        null: object,
        layout: TableLayout,
    ) -> None:
        """``columns`` are each state's.

        Content without a time was last accessed at ``now_us``. ``null`` is what a null means.
        """
        super().__init__(what, keys)
        self.infos: Final = infos
        self._contents: Final = [
            (names.value, names.written, content_of(info, layout.value, layout.user_key))
            for info, names in zip(infos, columns, strict=True)
        ]
        aging = [names for info, names in zip(infos, columns, strict=True) if info.has_ttl]
        self._written: Final = [names.written for names in aging]
        self._expires: Final = [names.expires for names in aging]
        self._now_us: Final = now_us
        self._null: Final = null

    @classmethod
    def of_state(cls, layout: TableLayout, info: StateInfo, keys: KeyReader, now_us: int) -> Self:
        """Return the reader of a table of one state, where null is a value."""
        what = f"the table of state {info.name!r}"
        return cls(what, keys, [info], [_OF_ONE], now_us, None, layout)

    @classmethod
    def of_operator(
        cls, layout: TableLayout, states: Mapping[str, StateInfo], keys: KeyReader, now_us: int
    ) -> Self:
        """Return the reader of a table whose columns are any states; null is no content."""
        columns = layout.columns
        named = {state: state_columns(state) for state in states}
        infos = [states[state] for state, names in named.items() if names.value in columns]
        if not infos:
            raise ConfigurationError(
                f"the table has the columns {', '.join(columns)}, and none of them is a state; the "
                f"operator's states: {', '.join(states)}. A table of one state is given with its "
                "name"
            )
        found = [named[info.name] for info in infos]
        return cls("the table of the operator", keys, infos, found, now_us, ABSENT, layout)

    def counted(self, rows: int, filled: Mapping[str, int]) -> dict[str, int]:
        """Return state → the number of its rows.

        There are ``rows`` in the table; ``filled`` is column → its values that are not null.
        """
        columns = zip(self.infos, self._contents, strict=True)
        nulls_count = self._null is not ABSENT
        return {info.name: rows if nulls_count else filled[value] for info, (value, *_) in columns}

    def kept(self, columns: Sequence[str]) -> list[str]:
        needed = [*self.keys.names, *(value for value, _, _ in self._contents)]
        return self._checked(columns, needed, optional=self._written, ignored=self._expires)

    def read(self, row: Mapping[str, Any]) -> ImportedRow:
        key, namespace, group = self.keys.read(row)
        content = [
            ABSENT
            if row[value] is None and self._null is ABSENT
            else make(row[value], row.get(written), self._now_us)
            for value, written, make in self._contents
        ]
        return ImportedRow(key, namespace, group, content)

    def place(self, row: ImportedRow) -> bytes:
        return self.keys.place(row)


class TimerRows(RowReader):
    """Reads a table of timers."""

    def __init__(self, keys: KeyReader) -> None:
        super().__init__("the table of timers", keys)

    def kept(self, columns: Sequence[str]) -> list[str]:
        return self._checked(columns, [*self.keys.names, "domain", "time"])

    def read(self, row: Mapping[str, Any]) -> ImportedRow:
        key, namespace, group = self.keys.read(row)
        domain = _DOMAINS.get(row["domain"])
        if domain is None:
            raise ValueError(f"the domain is {' or '.join(_DOMAINS)}, not {row['domain']!r}")
        at_us = instant_us(row["time"])
        timer = ImportedTimer(group, domain, at_us, key, packed_namespace(namespace))
        return ImportedRow(key, namespace, group, timer)

    def place(self, row: ImportedRow) -> bytes:
        timer: ImportedTimer = row.content
        return f"{timer.domain} {timer.at_us} ".encode() + self.keys.place(row)

    def shown(self, row: ImportedRow) -> str:
        timer: ImportedTimer = row.content
        return f"the timer at {time_of(timer.at_us)} of {super().shown(row)}"
