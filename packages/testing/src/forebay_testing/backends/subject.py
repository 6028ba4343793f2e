"""The fixtures of the kit: some for a backend's author to override, others for the tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from datetime import timedelta
from inspect import getattr_static
from typing import Any, ClassVar, Final, NamedTuple

import pytest
from obstore.store import MemoryStore

from forebay_engine.stored.restore import default_options
from forebay_state_api.contract.backend import Capability, StateBackend
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.job.aggregation import AggregateFunction
from forebay_state_api.job.descriptors import StateDescriptor
from forebay_state_api.job.functions import KeyedProcessFunction
from forebay_state_api.settings import EngineSettings
from forebay_state_api.storage.obstore import ObstoreStorage
from forebay_testing.backends.reporting import ADVICE, JOBS, SEED, TracedJob, register
from forebay_testing.backends.search import SHRINKING_S, Search
from forebay_testing.backends.stored_cells import StoredCells
from forebay_testing.clock import ManualClock
from forebay_testing.job import KeyedJob
from forebay_testing.pytest_plugin import NOT_CLAIMED
from forebay_testing.scripts import Style

ENGINES: Final = {
    "defaults": EngineSettings(drain_timeout_s=5),
    "tight": EngineSettings(
        read_ahead=False, in_flight_limit=2, batch_size=2, page_size=2, drain_timeout_s=5
    ),
}
"""The engines that every behaviour is tested with; the last one makes records and pages wait."""


class Manner(NamedTuple):
    """The style of a function under test, and the limits of its engine."""

    style: Style
    settings: EngineSettings


MANNERS: Final = {
    **{
        style.value: Manner(style, ENGINES["defaults"])
        for style in Style
        if style is not Style.OVERLAPPING
    },
    "tight": Manner(Style.COROUTINE, ENGINES["tight"]),
}
"""Every style but the one that overlaps only what is marked (`overlapping`), and the tight engine
with coroutines, which wait at every access."""

SECOND: Final = timedelta(seconds=1)

FORGET: Final = (
    "this test damages stored data, and the class does not override the fixture forget. A backend "
    "that keeps copies in the process between batches does not meet the damage: let forget return "
    "a function that empties its caches"
)

NewJob = Callable[..., KeyedJob]
NewStorage = Callable[[], ObjectStorage]

_numbers = itertools.count()


def memory_storage() -> ObjectStorage:
    """Return a new, empty storage."""
    return ObstoreStorage(MemoryStore(), f"memory://kit-{next(_numbers)}")


def skip_unless_claimed(backend_class: type[StateBackend], needed: Capability) -> None:
    """Skip a test of a capability that the backend does not claim."""
    if needed not in backend_class.capabilities:
        pytest.skip(f"{backend_class.name} {NOT_CLAIMED} {needed.name}")


class BackendSubject:
    """The backend under test and its environment: fixtures to override."""

    example_seed: ClassVar[int | None] = None
    """The seed for examples of properties, from `fresh_seed`; they are the same in each run if
    it is not set."""
    example_factor: ClassVar[int] = 1
    """The factor on the number of drawn examples."""
    unclaimed: ClassVar[Mapping[str, str]] = {}
    """Name of a test, or of one of its cases → why the backend does not keep the promise. Such
    tests are skipped, and the summary of the run lists them; another name is an error."""

    @pytest.fixture(autouse=True)
    def _says_what_was_promised(self, request: pytest.FixtureRequest) -> None:
        request.node.stash.setdefault(JOBS, [])
        register(request.config)
        rows = {name: name.partition("[")[0] for name in self.unclaimed}
        unknown = [name for name, row in rows.items() if not hasattr(type(self), row)]
        if unknown:
            pytest.fail(f"{type(self).__name__}.unclaimed: no test is {', '.join(unknown)}")
        for name in {request.node.originalname, request.node.name} & self.unclaimed.keys():
            promise = name.removeprefix("test_").replace("_", " ")
            pytest.skip(f"{type(self).__name__} {NOT_CLAIMED} {promise!r}: {self.unclaimed[name]}")

    @pytest.fixture
    def damages(self, request: pytest.FixtureRequest) -> None:
        """The test damages stored data: without `forget`, copies in memory may hide that."""
        if getattr_static(type(self), "forget") is getattr_static(BackendSubject, "forget"):
            request.node.stash[ADVICE] = FORGET

    @pytest.fixture
    def backend_class(self) -> type[StateBackend]:
        """The backend. Every subclass overrides this one."""
        pytest.fail(f"{type(self).__name__} has to override the fixture backend_class")

    @pytest.fixture
    def backend_options(self) -> Mapping[str, Any]:
        """The backend's settings, by their names without the prefix."""
        return {}

    @pytest.fixture
    def all_options(
        self, backend_class: type[StateBackend], backend_options: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """`backend_options` and the defaults of the other settings, as every opening has them."""
        return {**default_options(backend_class), **backend_options}

    @pytest.fixture
    def storage(self) -> ObjectStorage:
        """An empty state directory."""
        return memory_storage()

    @pytest.fixture
    def new_storage(self, storage: ObjectStorage) -> NewStorage:
        """Return a factory of empty state directories, each a new folder of `storage`.

        Rows that need several use nothing else, so that a backend meets the storage that a class
        gives it in all of them.
        """
        numbers = itertools.count()
        return lambda: storage.child(f"directory-{next(numbers)}")

    @pytest.fixture
    def stored_cells(self) -> StoredCells:
        """The pieces in which the backend stores cells: files, unless a subclass overrides this."""
        return StoredCells()

    @pytest.fixture
    def forget(self) -> Callable[[], None]:
        """A function that empties the backend's caches, as in a new process."""
        return lambda: None

    @pytest.fixture(params=["synchronous", "tight"])
    def manner(self, request: pytest.FixtureRequest) -> Manner:
        """The style of the function under test: at once, or awaited with tight limits.

        Styles are the engine's business; its tests have the others.
        """
        return MANNERS[request.param]

    @pytest.fixture(params=list(ENGINES))
    def engine_settings(self, request: pytest.FixtureRequest) -> EngineSettings:
        """The limits of the engine."""
        return ENGINES[request.param]

    @pytest.fixture
    def search(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Search:
        """The settings for properties; a failing example may shrink for half a minute."""
        limit = "hypothesis.internal.conjecture.engine.MAX_SHRINKING_SECONDS"
        monkeypatch.setattr(limit, SHRINKING_S, raising=False)
        if self.example_seed is not None:
            request.node.stash[SEED] = self.example_seed
        return Search(self.example_seed, self.example_factor)

    @pytest.fixture
    def new_job(
        self,
        request: pytest.FixtureRequest,
        backend_class: type[StateBackend],
        all_options: Mapping[str, Any],
        storage: ObjectStorage,
        forget: Callable[[], None],
    ) -> NewJob:
        """Return a factory of `KeyedJob` for descriptors; keyword arguments are passed on."""
        jobs: list[TracedJob] = request.node.stash.setdefault(JOBS, [])

        def options_of(name: str) -> Mapping[str, Any]:
            """The settings of a backend whose state another backend takes over."""
            return all_options if name == backend_class.name else {}

        def make(*descriptors: StateDescriptor, **more: Any) -> KeyedJob:
            more.setdefault("options", all_options)
            more.setdefault("options_of", options_of)
            more.setdefault("clock", ManualClock())
            place = more.pop("storage", storage)
            job = TracedJob(backend_class, place, descriptors=descriptors, forget=forget, **more)
            jobs.append(job)
            return job

        return make


class Recorded(KeyedProcessFunction[Any, Any, Any]):
    """A function whose ``open`` and record method are given as callables."""

    def __init__(self, opened: Callable[[Any, Any], None], process: Callable[..., Any]) -> None:
        """``opened(self, context)`` sets attributes; ``process(self, row, ctx)`` is the method."""
        self.opened = opened
        self.process = process

    def open(self, context: Any) -> None:
        self.opened(self, context)

    def process_element(self, row: Any, ctx: Any) -> Any:
        return self.process(self, row, ctx)


class Mean(AggregateFunction[float, tuple[int, float], float]):
    """The mean of the added values; counts the accumulators that it makes."""

    created = 0

    def create_accumulator(self) -> tuple[int, float]:
        Mean.created += 1
        return 0, 0.0

    def add(self, value: float, accumulator: tuple[int, float]) -> tuple[int, float]:
        return accumulator[0] + 1, accumulator[1] + value

    def get_result(self, accumulator: tuple[int, float]) -> float:
        return accumulator[1] / accumulator[0]

    def merge(self, first: tuple[int, float], second: tuple[int, float]) -> tuple[int, float]:
        return first[0] + second[0], first[1] + second[1]
