"""The oracle: what every version has to hold, and what must not happen to the store.

It sees every request that takes effect. A version's content is known in advance, because the
batches of a checkpoint are: the tokens of its batches, and money whose sum never changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_engine.versions.format.epochs import list_epochs
from forebay_engine.versions.format.folder import OperatorStorage
from forebay_engine.versions.format.layout import operator_folder
from forebay_engine.versions.format.manifest import Manifest
from forebay_engine.versions.format.markers import Made
from forebay_state_api.contract.file_names import DATA, data_version, version_of
from forebay_state_api.contract.object_storage import ObjectInfo
from forebay_testing.simulator.toy_query import GROUPS

if TYPE_CHECKING:
    from forebay_engine.versions.choosing.reader import VersionReader
    from forebay_testing.clock import ManualClock
    from forebay_testing.simulator.actors import Actor
    from forebay_testing.simulator.objects import ObjectsInMemory
    from forebay_testing.simulator.toy_query import History, Task

FOLDER: Final = operator_folder("query", "op")


class Violation(AssertionError):  # noqa: N818 - a promise that is not kept, not an error of use
    """A promise of the protocol is broken. ``kind`` names it, the same for all its cases."""

    def __init__(self, kind: str, detail: str = "") -> None:
        """``detail`` says how, in this case."""
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind: Final = kind


@attrs.frozen
class StoredManifest:
    """A manifest in the store: its version, the files that it names, and the step of its put."""

    version: int
    names: frozenset[str]
    put_at: int


@attrs.frozen
class JanitorPass:
    """A pass of the janitor: the oldest version that it has to keep, and its first step."""

    floor: int
    begun_at: int


class Oracle:
    """Checks each effect on the store, and everything that is read."""

    def __init__(self, objects: ObjectsInMemory, clock: ManualClock) -> None:
        """``objects`` is the store, without any faults."""
        self.objects: Final = objects
        self.storage: Final = OperatorStorage(objects, FOLDER)
        self._clock: Final = clock
        self.expected: Final[dict[tuple[int, str], History]] = {}
        """Version and run → what every key group holds."""
        self.floor = 0
        """The oldest version that all janitors have to keep."""
        self.passes: Final[dict[str, JanitorPass]] = {}
        """Actor → its pass of the janitor."""
        self._named: Final[dict[str, StoredManifest]] = {}
        """Stored manifests by name."""
        self._names = Counter[str]()
        """File → the number of stored manifests that name it."""
        self._marked: Final[dict[str, int]] = {}
        """Run → the step of its first marker."""

    def plan(self, version: int, run_key: str, history: History) -> None:
        """Learn what a run's version will hold."""
        self.expected[version, run_key] = history

    # -- what takes effect ----------------------------------------------------------------------

    def saw(self, actor: Actor, step: int, operation: str, full: str, answer: Any) -> None:
        """Check a request that has just taken effect; ``answer`` is ``None`` for a missing one."""
        name = full.removeprefix(f"{FOLDER}/")
        if name == full and operation in {"put", "put_if_absent", "delete"}:
            raise Violation("an object outside the operator's folder is changed", full)
        if operation == "delete":
            self._deleted(actor, name)
        elif name.startswith("versions/"):
            self._saw_version(actor, step, operation, name, answer)
        elif name.startswith(f"{DATA}/") and operation == "put":
            actor.wrote_at = step
        elif actor.begun and self._is_a_look(name, answer):
            actor.looked_at, actor.newest_seen = step, self.owner()

    def _is_a_look(self, name: str, answer: Any) -> bool:
        return name == "epochs" or (name.startswith("taken/") and answer is None)

    def _saw_version(self, actor: Actor, step: int, operation: str, name: str, answer: Any) -> None:
        if "/marker-" in name and answer:
            actor.begun = True
            self._marked.setdefault(actor.run_key, step)
        elif "/manifest-" in name and operation == "put":
            self._committed(actor, step, name)

    def _committed(self, actor: Actor, step: int, name: str) -> None:
        manifest = Manifest.unsealed(self.storage.get(name), name)
        if name not in self._named:  # a put is repeated when its answer was lost
            self._named[name] = StoredManifest(manifest.made.version, manifest.names, step)
            self._names.update(manifest.names)
        if actor.run_key:
            self._check_fence(actor)
        if actor.wrong:
            raise Violation("a version is made from another state", f"{name}: {actor.wrong}")

    def _check_fence(self, actor: Actor) -> None:
        if actor.looked_at <= actor.wrote_at:
            raise Violation("the look for newer runs comes before the data", actor.name)
        if actor.newest_seen != actor.run_key:
            raise Violation("the fence is passed while a newer run has an entry", actor.name)
        shown = list_epochs(self.storage)
        own = shown.of_run(actor.run_key)
        for run_key, marked_at in self._marked.items():
            other = shown.of_run(run_key)
            above = own is not None and other is not None and other.rank > own.rank
            if above and marked_at <= actor.looked_at:
                raise Violation("the fence is passed after a newer run has begun", actor.name)

    def _deleted(self, actor: Actor, name: str) -> None:
        swept = self.passes.get(actor.name)
        if self._names[name] and (swept is None or self._is_needed(name, swept)):
            raise Violation("a file that a stored manifest names is deleted", name)
        version = version_of(name.split("/")[1]) if name.startswith("versions/") else None
        if version is not None and (swept is None or version >= swept.floor):
            raise Violation("a version that has to be kept is deleted", name)
        if gone := self._named.pop(name, None):
            self._names.subtract(gone.names)

    def _is_needed(self, name: str, swept: JanitorPass) -> bool:
        """Return whether a manifest names a file that a pass must have seen, or that is kept.

        An attempt that comes late may put a manifest of a version that was cleared.
        """
        naming = [one for one in self._named.values() if name in one.names]
        return any(one.put_at < swept.begun_at or one.version >= swept.floor for one in naming)

    # -- what is read -----------------------------------------------------------------------------

    def opened(self, actor: Actor, task: Task, history: History) -> None:
        """Note how what a task has opened differs from what its batch has to open."""
        expected = dict.fromkeys(task.range, history) if history else {}
        if task.state != expected:
            actor.wrong = f"{actor.name} opened {_shown(task.state)}, not {_shown(expected)}"

    def read(
        self, version: int, run_key: str, histories: dict[int, History], money: dict[int, int]
    ) -> None:
        """Check what a reader reads of a version, whole."""
        expected = self.expected.get((version, run_key))
        wanted = {} if expected is None else dict.fromkeys(range(GROUPS), expected)
        if histories != wanted:
            detail = f"version {version}@{run_key}: {_shown(histories)}, not {_shown(wanted)}"
            raise Violation("a reader sees a wrong version", detail)
        if sum(money.values()):
            raise Violation("the bank's sum has changed", f"version {version}@{run_key}: {money}")

    def check_read(
        self,
        read: Callable[[VersionReader], tuple[dict[int, History], dict[int, int]]],
        reader: VersionReader,
    ) -> None:
        """Read a version that is open, and check it."""
        self.read(reader.version, reader.run_key or "", *read(reader))

    # -- at the end -------------------------------------------------------------------------------

    def useless(self, base: int, age: timedelta) -> list[str]:
        """Return files below ``base`` that are old and that no stored manifest names."""
        oldest = self._clock.now - age

        def is_useless(info: ObjectInfo) -> bool:
            version = data_version(info.name)
            below = version is not None and version < base
            return below and info.modified <= oldest and not self._names[info.name]

        return [info.name for info in self.storage.list(DATA) if is_useless(info)]

    def stored(self) -> list[Made]:
        """Return all markers and manifests that are stored."""
        return [made for made in map(Made.parse, self.storage.list("versions")) if made]

    def owner(self) -> str | None:
        """Return the run that ranks highest."""
        newest = list_epochs(self.storage).newest()
        return None if newest is None else newest.run_key


def _shown(state: dict[int, History]) -> str:
    groups: dict[History, list[int]] = {}
    for group, history in state.items():
        groups.setdefault(history, []).append(group)
    return "; ".join(f"{groups[one]}: {' '.join(one) or '-'}" for one in groups) or "nothing"
