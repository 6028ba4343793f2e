"""A query without Spark: runs, batches and task attempts over a toy data layer.

The state of a key group is its history: the tokens of the batches that it has processed. A task
appends one token to every group of its range, so the opened state shows exactly which batches, with
which data, made it.
"""

from __future__ import annotations

import builtins
import itertools
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Final, Self
from zlib import crc32

import attrs

from forebay_engine.versions import OperatorVersions, RunIdentity, TaskVersion, WriterMemory
from forebay_state_api.contract.checksummed import seal, unseal
from forebay_state_api.contract.file_names import data_name
from forebay_state_api.contract.files import CommittedState, ParentState, StateFile
from forebay_state_api.contract.object_storage import ObjectInfo, ObjectStorage
from forebay_state_api.keys import KeyGroupRange, key_group_range_of
from forebay_testing.clock import ManualClock
from forebay_testing.storage import WrappedStorage

GROUPS: Final = 8
MOST_FILES: Final = 3
"""A task writes whole histories into one file instead of more files than these."""

History = tuple[str, ...]
"""The tokens of the batches that a key group has processed."""


def read_state(storage: ObjectStorage, parents: Iterable[ParentState]) -> dict[int, History]:
    """Return the histories of the key groups in some parents; the later file wins."""
    return read_content(storage, parents)[0]


def read_content(
    storage: ObjectStorage, parents: Iterable[ParentState]
) -> tuple[dict[int, History], dict[int, int]]:
    """Return histories and money of the key groups in some parents; one request for each file."""
    histories: dict[int, History] = {}
    money: dict[int, int] = {}
    for file in (file for parent in parents for file in parent.files):
        stored = unseal(storage.get(file.name))
        groups = [group for group in stored["groups"] if group in file.range]
        histories |= {group: tuple(stored["groups"][group]) for group in groups}
        money |= {group: stored["money"][group] for group in groups}
    return histories, money


def transfer(token: str) -> tuple[int, int, int]:
    """Return the transfer that a batch makes: from which key group, to which, and how much."""
    drawn = crc32(token.encode())
    return drawn % GROUPS, drawn // GROUPS % GROUPS, drawn % 97


def paid(money: int, group: int, token: str) -> int:
    """Return a key group's money after a batch; no batch changes the sum of all groups."""
    payer, payee, amount = transfer(token)
    return money - amount * (group == payer) + amount * (group == payee)


class PastTheFence(WrappedStorage):
    """Shows the epochs of one moment: a commit checked then, and puts its manifest later."""

    def __init__(self, inner: ObjectStorage) -> None:
        super().__init__(inner)
        self.epochs = inner.list("epochs")
        self.taken = {info.name for info in inner.list("taken")}

    def list(self, prefix: str = "") -> builtins.list[ObjectInfo]:
        return self.epochs if prefix == "epochs" else super().list(prefix)

    def get(self, name: str) -> bytes:
        if name.startswith("taken/") and name not in self.taken:
            raise self.absent(name)
        return super().get(name)


@attrs.define
class Task:
    """One attempt of one subtask, after `begin`."""

    storage: ObjectStorage
    version: TaskVersion
    token: str
    state: dict[int, History]
    money: dict[int, int]

    @property
    def range(self) -> KeyGroupRange:
        return self.version.coordinates.range

    def write(self, *, whole: bool = False) -> CommittedState:
        """Process the batch and upload a file, without committing.

        With ``whole`` this file replaces all others.
        """
        self.state = {g: (*self.state.get(g, ()), self.token) for g in self.range}
        self.money = {g: paid(self.money.get(g, 0), g, self.token) for g in self.range}
        name = data_name(self.version.version, "delta")
        data = seal({"groups": self.state, "money": self.money})
        self.storage.put(name, data)
        new = StateFile(name=name, size=len(data), range=self.range)
        old = [file for parent in self.version.parents for file in parent.files]
        return CommittedState(files=[new] if whole or len(old) >= MOST_FILES else [*old, new])

    def pass_the_fence(self) -> Self:
        """Check for newer runs now; a later commit does not check again."""
        self.version._operator.storage = PastTheFence(self.storage)  # noqa: SLF001 - a part of it
        return self

    def commit(self, written: CommittedState | None = None) -> str:
        files = self.write() if written is None else written
        return self.version.commit(files, descriptions={"history": {"kind": "value"}})


class Run:
    """One run of the query: its identity, parallelism and increasing task attempt ids."""

    def __init__(self, query: Query, identity: RunIdentity, parallelism: int, data: str) -> None:
        self.query = query
        self.identity = identity
        self.parallelism = parallelism
        self.data = data
        self.memory = WriterMemory(clock=query.seconds)
        """Of the driver's worker process: each driver has its own."""
        self._attempts = itertools.count(1)

    @property
    def key(self) -> str:
        return self.identity.key

    def begin(self, batch: int, subtask: int = 0, attempt: int | None = None, **how: Any) -> Task:
        """Begin one attempt; ``new_state``, ``parallelism`` and others may be overridden."""
        storage = how.pop("storage", self.query.storage)
        parallelism = how.pop("parallelism", self.parallelism)
        token = how.pop("token", None)
        operator = OperatorVersions(
            storage,
            uid=how.pop("uid", "op"),
            max_parallelism=how.pop("max_parallelism", GROUPS),
            backend_name=how.pop("backend_name", "toy"),
            memory=how.pop("memory", self.memory),
        )
        version = operator.begin(
            batch_id=batch,
            subtask=subtask,
            parallelism=parallelism,
            range=how.pop("range", None)
            or key_group_range_of(subtask, parallelism, operator.max_parallelism),
            attempt_id=next(self._attempts) if attempt is None else attempt,
            run=self.identity,
            now_us=0,
            **how,
        )
        state, money = read_content(storage, version.parents)
        return Task(storage, version, token or f"{batch}{self.data}", state, money)

    def batch(self, batch: int, **how: Any) -> list[Task]:
        """Run and commit all subtasks of one batch, one after another."""
        tasks = []
        for subtask in range(self.parallelism):
            task = self.begin(batch, subtask, **how)
            task.commit()
            tasks.append(task)
        return tasks

    def batches(self, first: int, last: int, **how: Any) -> None:
        for batch in range(first, last + 1):
            self.batch(batch, **how)

    def opened(self, batch: int, **how: Any) -> dict[int, History]:
        """Return what all subtasks of an attempt of this batch would see together."""
        state: dict[int, History] = {}
        for subtask in range(self.parallelism):
            state |= self.begin(batch, subtask, **how).state
        return state


class Query:
    """One operator's folder, and the runs of the query."""

    def __init__(
        self,
        storage: ObjectStorage,
        clock: ManualClock | None = None,
        new_uuid: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> None:
        self.storage = storage
        self.clock = clock or ManualClock()
        self._new_uuid = new_uuid

    def seconds(self) -> float:
        return self.clock.now.timestamp()

    def run(
        self,
        parallelism: int = 2,
        data: str = "",
        *,
        spark_run: str | None = None,
        action: str | None = None,
    ) -> Run:
        """Start the query: a new keyed uuid and, unless given, a new Spark run.

        With ``action`` it is an action on a bounded DataFrame, which has no Spark run.
        """
        run_id = spark_run or str(self._new_uuid())
        identity = RunIdentity(
            keyed_uuid=str(self._new_uuid()),
            app_id="app",
            run_id=None if action else run_id,
            action=action,
        )
        return Run(self, identity, parallelism, data)
