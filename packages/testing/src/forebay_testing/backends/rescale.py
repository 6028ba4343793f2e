"""Rescale (docs/how-to/rescale.md): a restart finds every key in exactly one subtask."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Final

import pytest

from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.ttl import StateTtlConfig
from forebay_state_api.keys import key_group_of, subtask_of
from forebay_testing.backends.subject import SECOND, BackendSubject, NewJob
from forebay_testing.backends.ttl import EMPTY, READS, TTL, WRITES, WRITTEN, states_with
from forebay_testing.job import KeyedJob

NEW_YEAR: Final = datetime(2024, 1, 1, tzinfo=UTC)
KEYS = [f"key-{n}" for n in range(20)]


class RescaleTests(BackendSubject):
    """Twenty keys in eight key groups, with states of all kinds that have a TTL."""

    @pytest.fixture
    def spread(self, new_job: NewJob) -> KeyedJob:
        """A job whose keys were written in two batches, in two namespaces."""
        job = new_job(*states_with(StateTtlConfig(TTL)), parallelism=3)
        job.scripts([(key, WRITES) for key in KEYS[:10]])
        job.clock.advance(6 * SECOND)
        job.scripts([(key, [*WRITES, ("namespace", "w"), *WRITES]) for key in KEYS[10:]])
        return job

    @pytest.mark.parametrize("parallelisms", [[1], [2, 5], [8, 1, 3], [4, 4]], ids=str)
    def test_every_key_is_found_for_every_kind_with_its_times(
        self, spread: KeyedJob, parallelisms: list[int]
    ) -> None:
        for number, parallelism in enumerate(parallelisms):
            spread.restart(parallelism=parallelism)
            spread.do(f"new {number}", ("v.update", number))
        spread.clock.advance(5 * SECOND)
        found = spread.scripts([(key, [*READS, ("namespace", "w"), *READS]) for key in KEYS])
        assert found[:10] == [[*EMPTY, None, *EMPTY]] * 10
        assert found[10:] == [[*WRITTEN, None, *WRITTEN]] * 10
        news = [(f"new {number}", [("v.value",)]) for number in range(len(parallelisms))]
        assert spread.scripts(news) == [[number] for number in range(len(parallelisms))]

    @pytest.mark.parametrize(("before", "after", "max_parallelism"), [(1, 2, 10), (4, 3, 128)])
    def test_there_and_back(
        self, new_job: NewJob, before: int, after: int, max_parallelism: int
    ) -> None:
        states = states_with(StateTtlConfig(TTL))
        job = new_job(*states, parallelism=before, max_parallelism=max_parallelism)
        job.scripts([(key, WRITES) for key in KEYS])
        for parallelism in (after, before):
            job.clock.advance(3 * SECOND)
            job.restart(parallelism=parallelism)
            job.scripts([(key, WRITES) for key in KEYS[:5]])
        alive = [1, [1, 2] * 3, [("a", 1), ("b", 2)], 3, 1.0, [(1, 1), (2, 2)]]
        job.clock.advance(3 * SECOND)
        job.restart()
        assert job.scripts([(key, READS) for key in KEYS[:5]]) == [alive] * 5
        job.clock.advance(TTL)
        assert job.scripts([(key, READS) for key in KEYS]) == [EMPTY] * 20

    @pytest.mark.parametrize("parallelism", [1, 7])
    def test_each_key_is_counted_in_one_subtask(self, spread: KeyedJob, parallelism: int) -> None:
        spread.restart(parallelism=parallelism)
        spread.do(KEYS[0], ("v.value",))
        counts = [report.keys for report in spread.reports]
        if None in counts:
            pytest.skip(f"{spread.backend_class.name} does not count its cells")
        assert sum(count or 0 for count in counts) == 10 * len(WRITES) + 10 * len(WRITES) * 2

    @pytest.mark.parametrize("parallelism", [1, 7])
    def test_each_key_is_stored_for_the_subtask_that_owns_it(
        self, spread: KeyedJob, parallelism: int
    ) -> None:
        spread.restart(parallelism=parallelism)
        spread.do(KEYS[0], ("v.clear",))
        cells = [(None, key) for key in KEYS] + [("w", key) for key in KEYS[10:]]
        for descriptor in spread.descriptors:
            expected = cells[1:] if descriptor.name == "v" else cells
            for subtask in range(parallelism):
                found = spread.stored_keys(descriptor, subtask)
                own = [
                    (namespace, key)
                    for namespace, key in expected
                    if subtask_of(key_group_of(key, 8), parallelism, 8) == subtask
                ]
                assert sorted(found, key=repr) == sorted(own, key=repr)

    @pytest.mark.parametrize("parallelism", [1, 2, 8])
    def test_the_state_is_not_rewritten(self, spread: KeyedJob, parallelism: int) -> None:
        spread.restart(parallelism=parallelism)
        before = {info.name for info in spread.storage.list("data")}
        spread.scripts([(key, [("v.value",)]) for key in KEYS[10:]])
        assert {info.name for info in spread.storage.list("data")} == before

    def test_only_the_subtasks_that_changed_something_write(self, spread: KeyedJob) -> None:
        spread.restart(parallelism=4)
        spread.do("one key", ("v.update", 1))
        owner = subtask_of(key_group_of("one key", 8), 4, 8)
        wrote = [report.bytes_written > 0 for report in spread.reports]
        assert wrote == [subtask == owner for subtask in range(4)]

    def test_what_the_process_keeps_is_clipped_to_the_range_that_is_opened(
        self, new_job: NewJob
    ) -> None:
        """The same process opens other ranges, and changes every key in between."""
        job = new_job(*states_with(StateTtlConfig(TTL)), parallelism=1)
        for number, parallelism in enumerate([1, 2, 1, 3, 2, 8, 1]):
            job.restart(parallelism=parallelism, same_process=True)
            writes = [("v.update", number), ("r.add", 1), ("m.put", "n", number)]
            job.scripts([(key, writes) for key in KEYS])
            found = job.scripts([(key, [("v.value",), ("r.get",), ("m.items",)]) for key in KEYS])
            assert found == [[number, number + 1, [("n", number)]]] * 20

    def test_a_failed_rescale_leaves_the_old_version(self, spread: KeyedJob) -> None:
        spread.restart(parallelism=5)
        spread.do(KEYS[15], ("v.update", 9), crash=True)
        spread.restart(parallelism=2)
        assert spread.do(KEYS[15], ("v.value",)) == [1]

    def test_parallelism_above_max_parallelism(self, spread: KeyedJob) -> None:
        spread.restart(parallelism=9)
        with pytest.raises(ConfigurationError, match=r"1\.\.8.*9"):
            spread.do(KEYS[0], ("v.value",))

    def test_a_changed_max_parallelism_names_the_number_to_pass(self, spread: KeyedJob) -> None:
        spread.max_parallelism = 16
        spread.restart()
        with pytest.raises(ConfigurationError, match="max_parallelism=8"):
            spread.do(KEYS[0], ("v.value",))

    @pytest.mark.parametrize(
        "keys",
        [[1, -5, 2**62], [True, False], [1.5, -0.25], ["a", "ä", ""], [b"", b"x"], [("a", 1)]],
        ids=lambda keys: type(keys[0]).__name__,
    )
    def test_keys_of_every_type_survive(self, new_job: NewJob, keys: list[Any]) -> None:
        job = new_job(*states_with(StateTtlConfig(TTL)), parallelism=2)
        job.scripts([(key, WRITES) for key in keys])
        job.restart(parallelism=3)
        assert job.scripts([(key, [("v.value",)]) for key in keys]) == [[1]] * len(keys)

    @pytest.mark.parametrize(
        ("key", "equal"),
        [
            (0.0, -0.0),
            (Decimal("1.0"), Decimal("1.00")),
            (("a", Decimal(10)), ("a", Decimal("1e1"))),
            (NEW_YEAR, NEW_YEAR.astimezone(timezone(timedelta(hours=1)))),
        ],
        ids=repr,
    )
    def test_keys_that_are_equal_are_one(self, new_job: NewJob, key: Any, equal: Any) -> None:
        job = new_job(*states_with(StateTtlConfig(TTL)))
        job.do(key, *WRITES)
        for first, second in ((key, equal), (equal, key)):
            job.restart()
            asked = [(first, [("v.value",)]), (second, [("v.value",)])]
            assert job.scripts(asked) == [[1], [1]]
