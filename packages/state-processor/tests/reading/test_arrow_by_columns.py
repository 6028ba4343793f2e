"""State decoded by columns equals what was written, cell by cell: all types, over many versions."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple

import attrs
import pytest

from forebay_backend_heap.backend import HeapBackend
from forebay_backend_lsm.backend import LsmBackend
from forebay_state_api import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.keys import KeyGroupRange
from forebay_testing import ManualClock

pytestmark = pytest.mark.long

START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
TTL = 3 * MINUTE
NAMESPACES = [None, "w", 7]
SHOWN_NAMESPACES = {None: None, "w": '"w"', 7: "7"}


class Color(Enum):
    RED = 1
    BLUE = 2


class Point(NamedTuple):
    x: int
    label: str | None


@attrs.frozen
class Order:
    at: datetime
    price: Decimal
    points: list[Point]
    weights: dict[str, float]


def same(value: Any) -> Any:
    return value


def dict_of(point: Any) -> Any:
    return {"x": point.x, "label": point.label}


@attrs.frozen
class Kind:
    """A declared type, a random value of it, and what Arrow shows of a value."""

    declared: Any
    make: Callable[[random.Random], Any]
    shown: Callable[[Any], Any] = same


def dict_of_struct(struct: Any) -> Any:
    return {"a": struct[0], "b": struct[1]}


def point(r: random.Random) -> Point:
    return Point(r.randint(-9, 9), r.choice([None, "ü", ""]))


def order(r: random.Random) -> Order:
    return Order(
        START + r.randint(0, 10**9) * timedelta(microseconds=1),
        Decimal(r.randint(-999, 999)).scaleb(-2),
        [point(r) for _ in range(r.randint(0, 3))],
        {f"k{n}": r.random() for n in range(r.randint(0, 2))},
    )


def dict_of_order(one: Order) -> dict[str, Any]:
    return {
        "at": one.at,
        "price": str(one.price),
        "points": [dict_of(part) for part in one.points],
        "weights": [*one.weights.items()],
    }


KINDS = {
    "int": Kind(
        int, lambda r: r.choice([0, -1, 127, 128, -(2**63), 2**63 - 1, r.randint(0, 9**9)])
    ),
    "bool": Kind(bool, lambda r: r.random() < 0.5),
    "float": Kind(float, lambda r: r.choice([0.0, -1.5, float("inf"), r.random()])),
    "str": Kind(str, lambda r: r.choice(["", "ü\0", "x" * r.randint(0, 300)])),
    "bytes": Kind(bytes, lambda r: r.randbytes(r.randint(0, 40))),
    "date": Kind(date, lambda r: date.fromordinal(r.randint(1, 999_999))),
    "datetime": Kind(
        datetime,
        lambda r: datetime(2026, 3, r.randint(1, 28), tzinfo=r.choice([UTC, None])),
        lambda value: value.replace(tzinfo=UTC),
    ),
    "time": Kind(time, lambda r: time(r.randint(0, 23), r.randint(0, 59), 1, 7)),
    "timedelta": Kind(timedelta, lambda r: timedelta(microseconds=r.randint(-(9**15), 9**15))),
    "decimal": Kind(Decimal, lambda r: Decimal(r.randint(-(9**20), 9**20)).scaleb(-3), str),
    "uuid": Kind(uuid.UUID, lambda r: uuid.UUID(int=r.getrandbits(128)), str),
    "enum": Kind(Color, lambda r: r.choice([*Color]), lambda value: value.name),
    "optional": Kind(int | None, lambda r: r.choice([None, r.randint(0, 9)])),
    "pair": Kind(
        tuple[int, str | None],
        lambda r: (r.randint(0, 9), r.choice([None, "a"])),
        lambda value: {"_1": value[0], "_2": value[1]},
    ),
    "struct": Kind("a bigint, b double", lambda r: (r.randint(0, 9), 1.5), dict_of_struct),
    "record": Kind(Point, point, dict_of),
    "optional_record": Kind(
        Point | None,
        lambda r: r.choice([None, point(r)]),
        lambda value: None if value is None else dict_of(value),
    ),
    "nested": Kind(Order, order, dict_of_order),
    "records": Kind(
        list[Point],
        lambda r: [point(r) for _ in range(r.randint(0, 3))],
        lambda value: [dict_of(one) for one in value],
    ),
    "lists": Kind(list[list[int]], lambda r: [[1] * r.randint(0, 2)] * r.randint(0, 2)),
    "ints": Kind(tuple[int, ...], lambda r: (1,) * r.randint(0, 3), list),
    "dict": Kind(dict[str, int], lambda r: {"a": r.randint(0, 9)}, lambda value: [*value.items()]),
    "untyped": Kind(None, lambda r: r.choice([1, "a"]), lambda v: {1: "1", "a": '"a"'}[v]),
}


Held = dict[tuple[str, Any], Any]
"""Content by key and namespace; of ``aging`` with the time at which it was written."""


class Written:
    """A job that writes random content of one type over several versions, and what it holds."""

    def __init__(
        self,
        make_job: Any,
        kind: Kind,
        *,
        namespaces: Sequence[Any] = NAMESPACES,
        long_keys: bool = True,
    ) -> None:
        self.random = random.Random(1)
        self.kind = kind
        self.namespaces = namespaces
        self.keys = [*map(str, range(25)), *(["long" * 40] if long_keys else [])]
        self.clock = ManualClock(START)
        self.job = make_job(*self.states(kind.declared), clock=self.clock, key_type=str)
        self.held: dict[str, Held] = {"value": {}, "aging": {}, "list": {}, "map": {}}

    def states(self, declared: Any) -> list[Any]:
        one = [] if declared is None else [declared]
        return [
            ValueStateDescriptor("value", *one),
            ValueStateDescriptor("aging", *one, ttl=StateTtlConfig(TTL, cleanup=())),
            ListStateDescriptor("list", *one),
            MapStateDescriptor("map", str, *one),
        ]

    def versions(self, count: int) -> None:
        """Commit versions; the subtasks change from one to the next."""
        for version in range(count):
            self.clock.advance(MINUTE)
            self.job.restart(parallelism=1 + version % 2)
            keys = self.random.sample(self.keys, 14)
            self.job.scripts([(key, [*self.accesses(key)]) for key in keys])

    def accesses(self, key: str) -> Iterator[tuple[Any, ...]]:
        namespace = self.random.choice(self.namespaces)
        at = key, namespace
        yield "namespace", namespace
        for name in ("value", "aging"):
            value = None if self.random.random() < 0.2 else self.kind.make(self.random)
            yield f"{name}.update", value  # None clears
            self.held[name].pop(at, None)
            if value is not None:
                self.held[name][at] = value if name == "value" else (value, self.clock.now)
        added = self.kind.make(self.random)
        if added is not None:
            self.held["list"].setdefault(at, []).append(added)
            yield "list.add", added
        user_key = self.random.choice("abc")
        self.held["map"].setdefault(at, {})[user_key] = added
        yield "map.put", user_key, added

    def live(self) -> Held:
        """Return what has not expired."""
        now = self.clock.now
        return {at: one for at, one in self.held["aging"].items() if one[1] + TTL > now}

    def check(self, snapshot: Any) -> None:
        """Compare all tables of a snapshot with what was written."""
        shown = self.kind.shown
        live = self.live()
        value, aging, elements, entries = (table_of(snapshot, state) for state in self.held)
        assert column_of(value, "value") == shown_at(self.held["value"], shown)
        assert column_of(aging, "value") == shown_at(live, lambda one: shown(one[0]))
        assert column_of(aging, "written") == shown_at(live, lambda one: one[1])
        assert column_of(aging, "expires") == shown_at(live, lambda one: one[1] + TTL)
        assert column_of(elements, "value") == shown_at(
            self.held["list"], lambda one: [*map(shown, one)]
        )
        found = {at: sorted(one) for at, one in column_of(entries, "value").items()}
        assert found == shown_at(
            self.held["map"],
            lambda one: sorted((name, shown(value)) for name, value in one.items()),
        )
        joined = snapshot.table().read_all()
        assert column_of(joined, "value") == shown_at(self.held["value"], shown)
        for name, column in (("", "value"), (" written", "written"), (" expires", "expires")):
            assert column_of(joined, f"aging{name}") == column_of(aging, column)


def shown_at(held: Held, shown: Callable[[Any], Any]) -> Held:
    return {(key, SHOWN_NAMESPACES[at]): shown(one) for (key, at), one in held.items()}


def table_of(snapshot: Any, state: str) -> Any:
    """Return a state's table; each key and namespace is there once."""
    table = snapshot.to_arrow(state).read_all()
    table.validate(full=True)
    assert len(column_of(table, "value")) == table.num_rows
    for row in table.select(["key", "key_group"]).to_pylist():
        assert row["key_group"] == snapshot.key_group_of(row["key"])
    return table


def column_of(table: Any, column: str) -> Held:
    rows = table.select(["key", "namespace", column]).to_pylist()
    return {(row["key"], row["namespace"]): row[column] for row in rows if row[column] is not None}


BY_DEFAULT = {"nested", "struct", "untyped"}
"""Kinds that are read on `LsmBackend` too, by default; the types are decoded after the backend.

Whole numbers are read on both in the test of keys below.
"""


@pytest.mark.parametrize(
    ("backend_class", "kind"),
    [
        *(pytest.param(HeapBackend, kind, id=f"heap-{name}") for name, kind in KINDS.items()),
        *(
            pytest.param(
                LsmBackend,
                kind,
                id=f"lsm-{name}",
                marks=[] if name in BY_DEFAULT else [pytest.mark.slow],
            )
            for name, kind in KINDS.items()
        ),
    ],
)
def test_tables_hold_what_was_written(make_job: Any, read: Any, kind: Kind) -> None:
    written = Written(make_job, kind)
    written.versions(4)
    assert written.live() != written.held["aging"]
    written.check(read(provisional=True))


@pytest.mark.parametrize(
    ("namespaces", "long_keys"),
    [
        ([None], False),
        ([7], False),
        (NAMESPACES, True),
        *(
            pytest.param(namespaces, long_keys, marks=pytest.mark.slow)
            for namespaces, long_keys in (([None], True), ([7], True), (NAMESPACES, False))
        ),
    ],
    ids=str,
)
def test_keys_of_any_length_in_any_namespace(
    make_job: Any, read: Any, namespaces: list[Any], long_keys: bool
) -> None:
    written = Written(make_job, KINDS["int"], namespaces=namespaces, long_keys=long_keys)
    for count in (1, 3):
        written.versions(count)
        snapshot = read(provisional=True)
        written.check(snapshot)
        whole = snapshot.to_arrow("value").read_all().to_pylist()
        parts = [
            snapshot.to_arrow("value", key_groups=KeyGroupRange(group, group)).read_all()
            for group in snapshot.key_groups
        ]
        found = [row for part in parts for row in part.to_pylist()]
        assert sorted(found, key=repr) == sorted(whole, key=repr)


@attrs.frozen
class Before:
    count: int
    tags: list[str]


@attrs.frozen
class After:
    tags: list[str]
    total: float = attrs.field(default=0.5)
    count: int = 0


def test_records_of_an_earlier_declaration_are_read_as_the_newest(make_job: Any, read: Any) -> None:
    kind = Kind(
        Before,
        lambda r: Before(r.randint(0, 9), ["x"] * r.randint(0, 2)),
        lambda one: {"tags": one.tags, "total": getattr(one, "total", 0.5), "count": one.count},
    )
    written = Written(make_job, kind)
    written.versions(2)
    written.job.descriptors = written.states(After)
    written.kind = Kind(After, lambda r: After(["y"], r.random(), r.randint(0, 9)), kind.shown)
    written.versions(2)
    written.check(read(provisional=True))
