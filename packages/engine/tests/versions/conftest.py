"""A query without Spark: runs, batches and task attempts over a toy data layer.

The state of a key group is its history: the tokens of the batches that it has processed. A task
appends one token to every group of its range, so the opened state shows exactly which batches, with
which data, made it.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from typing import Self

import attrs
import pytest

from forebay_engine.versions import OperatorVersions, RunIdentity, TaskVersion
from forebay_engine.versions.writer_memory import WriterMemory
from forebay_state_api.contract.checksummed import seal, unseal
from forebay_state_api.contract.file_names import data_name
from forebay_state_api.contract.files import CommittedState, StateFile
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.keys import KeyGroupRange, key_group_range_of
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing.clock import ManualClock
from forebay_testing.storage import ClockedStorage, WrappedStorage

GROUPS = 8
MOST_FILES = 3


def read_state(storage, parents) -> dict[int, tuple[str, ...]]:
    """The toy data layer: each file holds histories, the later file wins."""
    state: dict[int, tuple[str, ...]] = {}
    for parent in parents:
        for file in parent.files:
            histories = unseal(storage.get(file.name))["groups"]
            state |= {g: tuple(h) for g, h in histories.items() if g in file.range}
    return state


class PastTheFence(WrappedStorage):
    """Shows the epochs of one moment: a commit checked then, and puts its manifest later."""

    def __init__(self, inner: ObjectStorage) -> None:
        super().__init__(inner)
        self.epochs = inner.list("epochs")
        self.taken = {info.name for info in inner.list("taken")}

    def list(self, prefix=""):
        return self.epochs if prefix == "epochs" else super().list(prefix)

    def get(self, name):
        if name.startswith("taken/") and name not in self.taken:
            raise self.absent(name)
        return super().get(name)


@attrs.define
class Task:
    """One attempt of one subtask, after `begin`."""

    storage: ObjectStorage
    version: TaskVersion
    token: str
    state: dict[int, tuple[str, ...]]

    @property
    def range(self) -> KeyGroupRange:
        return self.version.coordinates.range

    def write(self) -> CommittedState:
        """Process the batch and upload a file, without committing."""
        self.state = {g: (*self.state.get(g, ()), self.token) for g in self.range}
        name = data_name(self.version.version, "delta")
        data = seal({"groups": self.state})
        self.storage.put(name, data)
        new = StateFile(name=name, size=len(data), range=self.range)
        old = [file for parent in self.version.parents for file in parent.files]
        return CommittedState(files=[new] if len(old) >= MOST_FILES else [*old, new])

    def pass_the_fence(self) -> Self:
        """Check for newer runs now; a later commit does not check again."""
        self.version._operator.storage = PastTheFence(self.storage)
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

    def begin(self, batch: int, subtask: int = 0, attempt: int | None = None, **how) -> Task:
        """Begin one attempt; ``new_state``, ``parallelism`` and others may be overridden."""
        storage = how.pop("storage", self.query.storage)
        parallelism = how.pop("parallelism", self.parallelism)
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
        return Task(storage, version, f"{batch}{self.data}", read_state(storage, version.parents))

    def batch(self, batch: int, **how) -> list[Task]:
        """Run and commit all subtasks of one batch, one after another."""
        tasks = []
        for subtask in range(self.parallelism):
            task = self.begin(batch, subtask, **how)
            task.commit()
            tasks.append(task)
        return tasks

    def batches(self, first: int, last: int, **how) -> None:
        for batch in range(first, last + 1):
            self.batch(batch, **how)

    def opened(self, batch: int, **how) -> dict[int, tuple[str, ...]]:
        """Return what all subtasks of an attempt of this batch would see together."""
        state: dict[int, tuple[str, ...]] = {}
        for subtask in range(self.parallelism):
            state |= self.begin(batch, subtask, **how).state
        return state


class Query:
    """One operator's folder, and the runs of the query."""

    def __init__(self, storage: ObjectStorage, clock: ManualClock | None = None) -> None:
        self.storage = storage
        self.clock = clock or ManualClock()

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
        run_id = spark_run or str(uuid.uuid4())
        identity = RunIdentity(
            keyed_uuid=str(uuid.uuid4()),
            app_id="app",
            run_id=None if action else run_id,
            action=action,
        )
        return Run(self, identity, parallelism, data)


def history(*tokens: object) -> dict[int, tuple[str, ...]]:
    """Return the state in which every key group has processed these batches."""
    return {group: tuple(str(token) for token in tokens) for group in range(GROUPS)}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def storage(clock) -> Iterator[ObjectStorage]:
    """Storage in memory whose objects get the manual clock's times."""
    inner = MemoryStorage(f"memory://{uuid.uuid4()}")
    return ClockedStorage(inner, clock)


@pytest.fixture
def query(storage, clock) -> Query:
    return Query(storage, clock)


@pytest.fixture
def make_query():
    """Return `Query`, for tests with their own storage."""
    return Query


@pytest.fixture
def expected():
    """`history`."""
    return history


@pytest.fixture
def toy_state():
    """`read_state`."""
    return read_state
