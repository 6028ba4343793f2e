"""The fixtures of the kit: what a backend's author overrides, and what the tests are made of."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

import pytest
from obstore.store import MemoryStore

from forebay_state_api._engine.engine import EngineSettings
from forebay_state_api.backend import Capability, StateBackend
from forebay_state_api.descriptors import StateDescriptor
from forebay_state_api.functions import AggregateFunction, KeyedProcessFunction
from forebay_state_api.storage import ObjectStorage, ObstoreStorage
from forebay_state_api.testing.clock import ManualClock
from forebay_state_api.testing.job import KeyedJob
from forebay_state_api.testing.scripts import Style

ENGINES: Final = {
    "defaults": EngineSettings(drain_timeout_s=5),
    "tight": EngineSettings(
        read_ahead=False, in_flight_limit=2, batch_size=2, page_size=2, drain_timeout_s=5
    ),
}
"""Engines that every behaviour is tested with: the last one makes records and pages wait."""

SECOND: Final = timedelta(seconds=1)

NewJob = Callable[..., KeyedJob]

_numbers = itertools.count()


def memory_storage() -> ObjectStorage:
    """An empty storage of its own."""
    return ObstoreStorage(MemoryStore(), f"memory://kit-{next(_numbers)}")


def skip_unless_claimed(backend_class: type[StateBackend], needed: Capability) -> None:
    """Skip a test of what not every backend does."""
    if needed not in backend_class.capabilities:
        pytest.skip(f"{backend_class.name} does not claim {needed.name}")


class BackendSubject:
    """Which backend is tested, and in what surroundings: fixtures to override."""

    @pytest.fixture
    def backend_class(self) -> type[StateBackend]:
        """The backend. Every subclass overrides this one."""
        pytest.fail(f"{type(self).__name__} has to override the fixture backend_class")

    @pytest.fixture
    def backend_options(self) -> Mapping[str, Any]:
        """Its settings, by their names without the prefix."""
        return {}

    @pytest.fixture
    def storage(self) -> ObjectStorage:
        """An empty state directory."""
        return memory_storage()

    @pytest.fixture
    def forget(self) -> Callable[[], None]:
        """What empties the backend's caches, as a new process would find them."""
        return lambda: None

    @pytest.fixture(params=list(Style), ids=lambda style: style.value)
    def style(self, request: pytest.FixtureRequest) -> Style:
        """How the function under test is written."""
        style: Style = request.param
        return style

    @pytest.fixture(params=list(ENGINES))
    def engine_settings(self, request: pytest.FixtureRequest) -> EngineSettings:
        """Limits of the engine."""
        return ENGINES[request.param]

    @pytest.fixture
    def new_job(
        self,
        backend_class: type[StateBackend],
        backend_options: Mapping[str, Any],
        storage: ObjectStorage,
        forget: Callable[[], None],
    ) -> NewJob:
        """Makes a `KeyedJob` of some descriptors; keyword arguments are passed on."""

        def make(*descriptors: StateDescriptor, **more: Any) -> KeyedJob:
            more.setdefault("options", backend_options)
            more.setdefault("clock", ManualClock())
            place = more.pop("storage", storage)
            return KeyedJob(backend_class, place, descriptors=descriptors, forget=forget, **more)

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
    """The mean of what was added; counts how often an accumulator was made."""

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
