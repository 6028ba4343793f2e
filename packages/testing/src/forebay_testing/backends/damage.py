"""Damage: whatever a file of the state directory contains, no value is ever wrong."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from itertools import combinations, pairwise
from typing import Any, ClassVar, TypeVar

import pytest

from forebay_engine.versions import Janitor, RestoreFrom
from forebay_engine.versions.choosing.pins import lasting_holders
from forebay_engine.versions.choosing.savepoints import create_savepoint, list_savepoints
from forebay_state_api.codecs import Codec
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import CorruptStateError
from forebay_state_api.job.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.storage import ForwardingStorage
from forebay_testing.backends.stored_cells import StoredCells
from forebay_testing.backends.subject import BackendSubject, NewJob, NewStorage
from forebay_testing.job import KeyedJob

_KEYS = [f"key {number}" for number in range(12)]
_READS = [("v.value",), ("l.get",), ("m.items",)]
_FLIPPED = (0.5, 0.0, 0.99)

T = TypeVar("T")

Objects = Callable[..., dict[str, bytes]]
Damage = Mapping[str, bytes]
"""Name → the bytes that replace the object."""


class Fussy(Codec[str]):
    """A codec that writes bytes that it cannot read later on."""

    refuses = False
    id = "fussy"
    version = 1
    immutable = True

    def encode(self, value: str) -> bytes:
        return value.encode()

    def decode(self, data: bytes) -> str:
        if data == b"bad" and self.refuses:
            raise ValueError("I did not write this")
        return data.decode()

    def describe(self) -> str:
        return "fussy text"

    def compatible_with(self, stored_description: str) -> bool:
        return stored_description == "fussy text"


def _states() -> list[StateDescriptor]:
    return [
        ValueStateDescriptor("v", int),
        ListStateDescriptor("l", str),
        MapStateDescriptor("m", str, int),
    ]


class _NamesRequests(ForwardingStorage):
    """Keeps the full names of requested objects."""

    def __init__(self, inner: ObjectStorage) -> None:
        super().__init__(inner)
        self.requested: set[str] = set()

    def around(self, operation: str, name: str, request: Callable[[], T]) -> T:
        self.requested.add(name)
        return request()

    def has_requested(self, name: str) -> bool:
        """Return whether an object was requested whose name in its operator's folder is given."""
        return any(full.endswith(f"/{name}") for full in self.requested)


@pytest.mark.usefixtures("damages")
class DamageTests(BackendSubject):
    """A state directory whose objects are swapped, emptied, truncated and altered one by one."""

    thorough: ClassVar[bool] = False
    """Whether every reader meets every damage, and any two objects of the engine are exchanged.

    Otherwise every reader meets the first damage to each object, and the others are met by those
    that have noticed the first; those to files of cells by one. Of the engine's own objects, those
    of one kind are exchanged, and neighbours in the listing.
    """

    @pytest.fixture
    def names_files(self) -> bool:
        """Whether files are refused under one another's names, and errors name file and key.

        Asked of backends whose tests say so; every backend has to find what is no whole file.
        """
        return False

    @pytest.fixture
    def healthy(self, new_job: NewJob) -> KeyedJob:
        """Three versions of two subtasks, and a savepoint."""
        job = new_job(*_states(), parallelism=2)
        for number in range(3):
            writes = [("v.update", number), ("l.add", "x"), ("m.put", "a", number)]
            job.scripts([(key, writes) for key in _KEYS[: 12 - number]])
        create_savepoint(job.storage, "kept", uid=job.uid)
        return job

    @pytest.fixture
    def objects_of(self, healthy: KeyedJob, stored_cells: StoredCells) -> Objects:
        """Return a function that returns the objects to damage, as `_objects` does.

        Below ``data`` these are the files that the fixture `stored_cells` names.
        """
        pieces = stored_cells.pieces(healthy.storage) if stored_cells.in_files else None

        def some(version: int = 0, alike: int | None = None) -> dict[str, bytes]:
            found = _objects(healthy.storage, version, alike)
            return {n: d for n, d in found.items() if _is_damaged(n, pieces)}

        return some

    @pytest.fixture
    def check(
        self,
        healthy: KeyedJob,
        new_job: NewJob,
        new_storage: NewStorage,
        caplog: pytest.LogCaptureFixture,
    ) -> Callable[[Iterable[Damage]], int]:
        """Open the state with each damage, and return the number of damages."""
        objects = _objects(healthy.storage)
        affected = _Affected(thorough=self.thorough)
        expected = healthy.scripts([(key, _READS) for key in _KEYS])

        def check(damages: Iterable[Damage]) -> int:
            count = 0
            for damage in damages:
                storage = _NamesRequests(new_storage())
                for name, data in (objects | dict(damage)).items():
                    storage.child(healthy.operator).put(name, data)
                job = new_job(*_states(), storage=storage, parallelism=2, clock=healthy.clock)
                job.batch_id = 3
                fork = new_job(
                    *_states(),
                    storage=storage,
                    query="fork",
                    restore=RestoreFrom("query", savepoint="kept"),
                )
                caplog.clear()
                acts = _acts(job, fork, expected, partial(_is_logged, caplog, damage))
                affected.check(acts, damage, storage)
                count += 1
            return count

        return check

    def test_every_two_objects_exchanged(
        self, objects_of: Objects, check: Callable[[Iterable[Damage]], int], *, names_files: bool
    ) -> None:
        objects = objects_of(version=3, alike=2)
        some = objects_of(version=3, alike=1)
        pairs = [pair for pair in combinations(some, 2) if not all(map(_is_of_cells, pair))]
        if not self.thorough:
            neighbours = set(pairwise(some))
            pairs = [
                pair
                for pair in pairs
                if any(map(_is_of_cells, pair)) or _are_alike(*pair) or pair in neighbours
            ]
        if names_files:  # all files are refused in the same way: one pair per file suffices
            pairs += pairwise(filter(_is_of_cells, objects))
        assert check({a: objects[b], b: objects[a]} for a, b in pairs)

    def test_every_object_emptied(
        self, objects_of: Objects, check: Callable[[Iterable[Damage]], int]
    ) -> None:
        assert check({name: b""} for name, data in objects_of(version=3, alike=1).items() if data)

    def test_every_object_cut(
        self, objects_of: Objects, check: Callable[[Iterable[Damage]], int]
    ) -> None:
        objects = objects_of(version=3, alike=1)
        assert check(
            {name: data[:length]}
            for name, data in objects.items()
            for length in dict.fromkeys((len(data) // 2, 1, len(data) - 1))
        )

    def test_every_object_altered(
        self, objects_of: Objects, check: Callable[[Iterable[Damage]], int]
    ) -> None:
        objects = objects_of(version=3, alike=1)
        assert check(
            {name: _flipped(data, place)}
            for name, data in objects.items()
            for place in _FLIPPED
            if data
        )

    @pytest.mark.parametrize(
        ("descriptor", "write", "read"),
        [
            (ValueStateDescriptor("s", Fussy()), lambda one: ("s.update", one), "s.value"),
            (ListStateDescriptor("s", Fussy()), lambda one: ("s.add", one), "s.get"),
            (MapStateDescriptor("s", str, Fussy()), lambda one: ("s.put", "a", one), "s.items"),
            (MapStateDescriptor("s", Fussy(), int), lambda one: ("s.put", one, 1), "s.items"),
        ],
        ids=["value", "list", "map", "user key"],
    )
    def test_bytes_that_no_codec_wrote_name_file_state_and_key(
        self,
        new_job: NewJob,
        monkeypatch: pytest.MonkeyPatch,
        descriptor: StateDescriptor,
        write: Callable[[str], Any],
        read: str,
        *,
        names_files: bool,
    ) -> None:
        job = new_job(descriptor)
        job.scripts([(key, [write("bad" if key == "key 7" else "good")]) for key in _KEYS])
        files = [info.name for info in job.storage.list("data")]
        job.restart()
        monkeypatch.setattr(Fussy, "refuses", True)
        with pytest.raises(CorruptStateError, match=r"state 's'.*Error") as found:
            job.do("key 7", (read,))
        text = str(found.value)
        if names_files:
            assert "key 'key 7'" in text
            assert any(name in text for name in files)


def _is_damaged(name: str, pieces: Mapping[str, bytes] | None) -> bool:
    """Return whether a file of cells is one of the pieces; all are if these are not files."""
    return not _is_of_cells(name) or pieces is None or name in pieces


def _is_of_cells(name: str) -> bool:
    return name.startswith("data/")


def _are_alike(a: str, b: str) -> bool:
    """Return whether two names differ in their versions, subtasks and random parts only."""

    def kind(name: str) -> tuple[str, str]:
        folder, _, rest = name.partition("/")
        return folder, rest.rpartition("/")[2].partition("-")[0]

    return kind(a) == kind(b)


def _objects(
    storage: ObjectStorage, version: int = 0, alike: int | None = None
) -> dict[str, bytes]:
    """Return the objects by name.

    Without versions and files older than ``version``. Of the files of one version and kind, which
    differ only in their cells, at most ``alike``.
    """
    stored = sorted(storage.list(), key=lambda info: info.name)
    folders = sorted({i.name.split("/")[1] for i in stored if i.name.startswith("versions/")})
    old = set() if not version else {f"versions/{folder}" for folder in folders[2:]}
    names = [i.name for i in stored if "/".join(i.name.split("/")[:2]) not in old]
    kinds = Counter[str]()
    kept = []
    for name in names:
        kinds[kind := _kind_of(name)] += 1
        if alike is None or not _is_of_cells(name) or kinds[kind] <= alike:
            kept.append(name)
    return {name: storage.get(name) for name in kept}


def _kind_of(name: str) -> str:
    """Return a file's name without its random part: its version, and what wrote it."""
    return re.sub("[0-9a-f]{24}", "", name)


def _acts(
    job: KeyedJob, fork: KeyedJob, expected: Any, is_logged: Callable[[], bool]
) -> Sequence[Callable[[], None]]:
    """Return uses of a damaged directory; each is correct, or fails and names the object.

    A reader of the newest complete version gets an older one, with a warning.
    """

    def read() -> None:
        assert job.scripts([(key, _READS) for key in _KEYS]) == expected

    def go_on() -> None:
        job.do("key 1", ("v.update", 9))
        job.restart(parallelism=3)
        assert job.do("key 1", ("v.value",)) == [9]

    def look() -> None:
        newest = job.peek(job.descriptors[0], _KEYS[0])
        assert newest == 2 or (newest == 1 and is_logged())

    def restore() -> None:
        assert fork.scripts([(key, _READS) for key in _KEYS]) == expected

    def keep() -> None:
        assert [saved.name for saved in list_savepoints(job.storage)] == ["kept"]
        assert lasting_holders(job.storage) == ["savepoint kept"]

    def sweep() -> None:
        janitor = Janitor(
            job.storage, run_key=job.run_key, retention=1, min_age=timedelta(0), dry_run=True
        )
        janitor.sweep(job.batch_id)

    return read, go_on, look, keep, restore, sweep


def _is_logged(caplog: pytest.LogCaptureFixture, damage: Damage) -> bool:
    return any(name in caplog.text for name in damage)


class _Affected:
    """Checks damages; after the first damage to an object only the acts that it has affected."""

    def __init__(self, *, thorough: bool) -> None:
        self.thorough = thorough
        self.acts: dict[str, set[int]] = {}
        """Object → the positions of the acts that requested it or were refused."""

    def check(
        self, acts: Sequence[Callable[[], None]], damage: Damage, storage: _NamesRequests
    ) -> None:
        """Check one damage."""
        # Every act checks a file of cells in the same way: all of them with one damage to each
        # file, one with the others, among which are most pairs.
        cells = set(filter(_is_of_cells, damage))
        is_one_of_many = bool(cells) and (len(damage) > 1 or cells <= self.acts.keys())
        if is_one_of_many and not self.thorough:
            _check_one(acts[0], damage)
        elif self.thorough or not damage.keys() <= self.acts.keys():
            self._check_all(acts, damage, storage)
        else:
            for position in sorted(set[int]().union(*(self.acts[name] for name in damage))):
                _check_one(acts[position], damage)

    def _check_all(
        self, acts: Sequence[Callable[[], None]], damage: Damage, storage: _NamesRequests
    ) -> None:
        for name in damage:
            self.acts.setdefault(name, set())
        for position, act in enumerate(acts):
            storage.requested.clear()
            is_refused = _check_one(act, damage)
            for name in damage:
                if is_refused or storage.has_requested(name):
                    self.acts[name].add(position)


def _check_one(act: Callable[[], None], damage: Damage) -> bool:
    """Return whether an act was refused."""
    try:
        act()
    except CorruptStateError as error:
        text = "\n".join([str(error), *getattr(error, "__notes__", ())])
        assert any(name in text for name in damage), f"{[*damage]}: {text}"
        return True
    return False


def _flipped(data: bytes, place: float) -> bytes:
    altered = bytearray(data)
    altered[int(len(data) * place)] ^= 1
    return bytes(altered)
