"""Values whose equality hides a difference, or that a store takes for nothing: compared as text."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pytest

from forebay_state_api.job.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.job.ttl import StateTtlConfig
from forebay_testing.backends.table_contents import read_contents, write_contents, write_points
from forebay_testing.backends.table_versions import OverVersions, Versions, spec_for

_NAN: Final = float("nan")
_INF: Final = float("inf")
VALUES: Final[Mapping[str, tuple[Any, list[Any]]]] = {
    "float": (float, [_NAN, 0.0, -0.0, _INF, -_INF, 5e-324, 1.7976931348623157e308, 0.1]),
    "text": (
        str,
        [
            "",
            " ",
            " a ",
            "\0",
            "a\0",
            "\u00e9",
            "e\u0301",
            "\U0001f600",
            "\ufeffa",
            "a\r\nb",
        ],
    ),
    "half a character": (str, ["\ud800", "a\udfff"]),
    "bytes": (bytes, [b"", b"\0", b"a\0", b"a\0\0", b"\xff" * 300, b"\r\n"]),
    "int": (int, [0, -1, 255, 256, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)]),
    "long int": (int, [2**63, -(2**63) - 1, -(2**300)]),
    "bool": (bool, [False, True]),
    "decimal": (Decimal, [*map(Decimal, ["1", "1.0", "1.00", "0", "0.10", "1E+50", "-1.5"])]),
    "date": (date, [date.min, date(1969, 12, 31), date.max]),
    "datetime": (
        datetime,
        [
            datetime(1, 1, 1, tzinfo=UTC),
            datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
            datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
            datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        ],
    ),
    "duration": (timedelta, [timedelta(0), timedelta(microseconds=-1), timedelta(days=-1)]),
    "optional": (int | None, [None, 0, None]),
    "list": (list[str], [[], [""], ["", ""], ["a", ""]]),
    "dict": (dict[str, float], [{}, {"": _NAN}, {"a": -0.0}]),
    "tuple": (tuple[int, str], [(0, ""), (-1, "\0")]),
    "untyped": (
        None,
        [
            1,
            True,
            1.0,
            "1",
            b"1",
            (1,),
            [1],
            {"a": 1},
            {},
            [],
            (),
            "",
            b"",
            0,
            False,
            -0.0,
            _NAN,
            2**60,
        ],
    ),
}
"""Name of a type → the type, and values of it."""
TTL: Final = StateTtlConfig(timedelta(days=1))
TIMES: Final = [0, 1, -1, 1_704_067_200_123_457, 2**53 + 1, 253_402_300_799_999_999]
"""Times of access in µs, of which the last two do not fit a float."""
_COMMITS: Final = 20
"""The number of later commits, in which every backend merges files or writes a snapshot."""


class RepresentationTests(OverVersions):
    """Stored values come back with their type, their sign and their last character."""

    @pytest.mark.parametrize("ttl", [None, TTL], ids=["plain", "ttl"])
    @pytest.mark.parametrize("kind", VALUES)
    def test_values_come_back_as_they_were(
        self, versions: Versions, kind: str, ttl: StateTtlConfig | None
    ) -> None:
        """As values, elements and entries; after a commit, and after later ones that merge it."""
        declared, values = VALUES[kind]
        held = [(TIMES[n % len(TIMES)], one) if ttl else one for n, one in enumerate(values)]
        contents: list[tuple[Any, dict[str, Any]]] = [
            (
                ValueStateDescriptor("v", declared, ttl=ttl),
                {f"k{n}": v for n, v in enumerate(held)},
            ),
            (ListStateDescriptor("l", declared, ttl=ttl), {"k": held}),
            (
                MapStateDescriptor("m", str, declared, ttl=ttl),
                {"k": {f"e{n}": v for n, v in enumerate(held)}},
            ),
        ]
        specs = [spec_for(descriptor) for descriptor, _ in contents]
        with versions.writing(*specs) as tables:
            for table, spec, (_, content) in zip(tables, specs, contents, strict=True):
                write_contents(table, spec, content)
        expected = [repr([*content.values()]) for _, content in contents]
        assert _read(versions, specs, contents) == expected
        other = spec_for(ValueStateDescriptor("other", int))
        for number in range(_COMMITS):
            with versions.writing(other, *specs) as tables:
                write_points(tables[0], {f"{number % 3}": number})
        assert _read(versions, specs, contents) == expected, "after later commits"

    def test_times_are_kept_to_the_microsecond_for_ten_thousand_years(
        self, versions: Versions
    ) -> None:
        spec = spec_for(ValueStateDescriptor("v", int, ttl=TTL))
        cells = {f"k{n}": (time, n) for n, time in enumerate(TIMES)}
        with versions.writing(spec) as (table,):
            write_points(table, cells)
        with versions.reading(spec) as (table,):
            assert read_contents(table, spec, [*cells]) == [*cells.values()]


def _read(
    versions: Versions, specs: list[Any], contents: list[tuple[Any, dict[str, Any]]]
) -> list[str]:
    with versions.reading(*specs) as tables:
        found = []
        for table, spec, (_, content) in zip(tables, specs, contents, strict=True):
            read = read_contents(table, spec, [*content])
            if spec.user_key is not None:  # a scan yields entries in any order
                read = [
                    dict(sorted(one.items(), key=lambda entry: int(entry[0][1:]))) for one in read
                ]
            found.append(repr(read))
    return found
