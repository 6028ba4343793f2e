"""Running a job: a claim first, a folder for each run, heartbeats, the result object last."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import ClassVar

import attrs
import pytest

from forebay_engine.compaction.performing import TakenPrefixError, perform
from forebay_state_api.contract.checksummed import TornObjectError, seal
from forebay_state_api.contract.compaction_job import CompactionJob, CompactionResult
from forebay_state_api.contract.file_names import compaction_prefix
from forebay_state_api.contract.files import StateFile
from forebay_state_api.contract.object_storage import ObjectNotFoundError, ObjectStorage
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.storage.opening import open_storage

JOB = CompactionJob(
    id="j",
    operator="q/u",
    format="slow",
    inputs=[],
    output_prefix=f"data/fffffffffff8/compaction-{'7' * 24}/",
    range=KeyGroupRange(0, 1),
    now_us=0,
    target_bytes=1,
    heartbeat_s=10,
)
FILE = StateFile(name="data/x", size=7, range=KeyGroupRange(0, 1), meta={"entries": 1})


@attrs.define
class Slow:
    """Checks for cancellation ``asks`` times, ``step_s`` apart, and returns an empty result."""

    format: ClassVar[str] = "slow"
    asks: int
    step_s: float
    time_s: float = 0.0

    def clock(self) -> float:
        return self.time_s

    def compact(
        self, job: CompactionJob, storage: ObjectStorage, cancelled: Callable[[], bool]
    ) -> CompactionResult | None:
        del job, storage
        for _ in range(self.asks):
            self.time_s += self.step_s
            if cancelled():
                return None
        return CompactionResult(outputs=[], entries_in=0, entries_out=0, entries_dropped=0)


@attrs.define
class Copying:
    """Copies its inputs; calls ``before`` when it has begun, and ``after`` before it returns."""

    format: ClassVar[str] = "slow"
    before: Callable[[], object] = lambda: None
    after: Callable[[], object] = lambda: None

    def compact(
        self, job: CompactionJob, storage: ObjectStorage, cancelled: Callable[[], bool]
    ) -> CompactionResult | None:
        self.before()
        outputs = []
        for number, file in enumerate(job.inputs):
            output = attrs.evolve(file, name=f"{job.output_prefix}{number:04d}")
            storage.put(output.name, storage.get(file.name))
            outputs.append(output)
        self.after()
        count = len(outputs)
        return CompactionResult(
            outputs=outputs, entries_in=count, entries_out=count, entries_dropped=0
        )


@pytest.fixture
def storage() -> ObjectStorage:
    opened = open_storage(f"memory://{uuid.uuid4().hex}")
    opened.put("q/u/data/x", b"content")
    opened.put("q/u/data/y", b"forgery")
    return opened


@pytest.fixture
def here(storage: ObjectStorage) -> ObjectStorage:
    return storage.child("q/u")


def names(here: ObjectStorage) -> list[str]:
    """Return the names below the prefix, with ``*`` for the random part of a run's folder."""
    below = [info.name.removeprefix(JOB.output_prefix) for info in here.list(JOB.output_prefix)]
    return [f"run-*/{name.partition('/')[2]}" if "/" in name else name for name in below]


def run(here: ObjectStorage, storage: ObjectStorage, compactor: Slow, until_s: float) -> list[str]:
    """Run the job, cancelled at ``until_s``; return the names below its prefix."""
    result = perform(
        JOB, compactor, storage, lambda: compactor.time_s > until_s, clock=compactor.clock
    )
    assert (result is not None) == (JOB.result_name in [info.name for info in here.list()])
    return names(here)


def test_a_short_job_leaves_no_heartbeat(here: ObjectStorage, storage: ObjectStorage) -> None:
    assert run(here, storage, Slow(asks=3, step_s=3), 99) == ["claim", "result"]


def test_a_heartbeat_whenever_its_time_has_come(
    here: ObjectStorage, storage: ObjectStorage
) -> None:
    beats = ["run-*/heartbeat-000001", "run-*/heartbeat-000002"]
    assert run(here, storage, Slow(asks=25, step_s=1), 99) == ["claim", "result", *beats]


def test_a_job_that_was_cancelled_has_no_result(
    here: ObjectStorage, storage: ObjectStorage
) -> None:
    found = run(here, storage, Slow(asks=40, step_s=1), 15)
    assert found == ["claim", "run-*/heartbeat-000001"]


def test_a_job_of_a_fork_reads_files_of_its_source(
    here: ObjectStorage, storage: ObjectStorage
) -> None:
    storage.put("other/u/data/p/x", b"theirs!")
    file = attrs.evolve(FILE, name="from/other/u/data/p/x")
    job = attrs.evolve(JOB, inputs=[file])
    assert perform(job, Copying(), storage, lambda: False)
    (output,) = job.stored_result(here).outputs
    assert here.get(output.name) == b"theirs!"


# -- several runs of one job --------------------------------------------------------------------

COPY = attrs.evolve(JOB, inputs=[FILE])


@pytest.mark.parametrize("inner_is_first", [True, False])
def test_of_two_runs_at_once_the_first_result_wins(
    here: ObjectStorage, storage: ObjectStorage, inner_is_first: bool
) -> None:
    """A zombie, and the fallback of the job's owner: one is done in the middle of the other."""
    ran: list[CompactionResult | None] = []

    def other() -> None:
        ran.append(perform(COPY, Copying(), storage, lambda: False))
        first.append(COPY.stored_result(here))

    first: list[CompactionResult] = []
    compactor = Copying(before=other) if inner_is_first else Copying(after=other)
    assert perform(COPY, compactor, storage, lambda: False)
    assert len(ran) == 1
    assert ran[0] is not None
    assert COPY.stored_result(here) == first[0]
    assert names(here) == ["claim", "result", "run-*/0000", "run-*/0000"]
    outputs = [info.name for info in here.list(COPY.output_prefix) if info.name.endswith("/0000")]
    assert first[0].outputs[0].name in outputs
    assert {here.get(name) for name in outputs} == {b"content"}


def test_a_run_that_comes_late_changes_nothing(here: ObjectStorage, storage: ObjectStorage) -> None:
    perform(COPY, Copying(), storage, lambda: False)
    before = {info.name: here.get(info.name) for info in here.list()}
    assert perform(attrs.evolve(COPY, id="another", attempt=4), Copying(), storage, lambda: False)
    assert before.items() <= {info.name: here.get(info.name) for info in here.list()}.items()


def test_two_runs_do_not_hide_each_others_heartbeats(
    here: ObjectStorage, storage: ObjectStorage
) -> None:
    for beats in (1, 2):
        compactor = Slow(asks=50, step_s=11)
        run(here, storage, compactor, 11 * (beats - 0.5))
        assert JOB.heartbeats(here) == sum(range(beats + 1))


# -- jobs that are not what they seem -----------------------------------------------------------

FORGED = attrs.evolve(COPY, inputs=[attrs.evolve(FILE, name="data/y")])


def forged(storage: ObjectStorage) -> None:
    with pytest.raises(TakenPrefixError, match="belongs to a job with another description"):
        perform(FORGED, Copying(), storage, lambda: False)


def test_a_live_file_is_not_overwritten(here: ObjectStorage, storage: ObjectStorage) -> None:
    perform(COPY, Copying(), storage, lambda: False)
    before = {info.name: here.get(info.name) for info in here.list()}
    forged(storage)
    assert {info.name: here.get(info.name) for info in here.list()} == before


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_result_is_not_forged_while_the_job_runs(
    here: ObjectStorage, storage: ObjectStorage, moment: str
) -> None:
    compactor = Copying(**{moment: lambda: forged(storage)})
    assert perform(COPY, compactor, storage, lambda: False)
    (output,) = COPY.stored_result(here).outputs
    assert here.get(output.name) == b"content"


def test_a_result_that_was_forged_before_the_job_ran_counts_as_none(
    here: ObjectStorage, storage: ObjectStorage, caplog: pytest.LogCaptureFixture
) -> None:
    perform(FORGED, Copying(), storage, lambda: False)
    with pytest.raises(ObjectNotFoundError):
        COPY.stored_result(here)
    assert "is ignored: it belongs to a job with another description" in caplog.text
    with pytest.raises(TakenPrefixError, match="belongs to a job with another description"):
        perform(COPY, Copying(), storage, lambda: False)
    again = attrs.evolve(COPY, id="k", output_prefix=compaction_prefix(8))
    assert perform(again, Copying(), storage, lambda: False)
    (output,) = again.stored_result(here).outputs
    assert here.get(output.name) == b"content"


@pytest.mark.parametrize(
    "changes",
    [
        {"operator": "q/v"},
        {"format": "other"},
        {"inputs": [attrs.evolve(FILE, size=8)]},
        {"inputs": [attrs.evolve(FILE, range=KeyGroupRange(0, 0))]},
        {"inputs": [attrs.evolve(FILE, meta={"entries": 2})]},
        {"inputs": [FILE, FILE]},
        {"range": KeyGroupRange(0, 0)},
        {"output_prefix": compaction_prefix(7)},
        {"now_us": 1},
        {"target_bytes": 2},
        {"options": {"bottom": True}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_all_that_decides_the_outputs_is_in_the_digest(changes: dict[str, object]) -> None:
    assert attrs.evolve(COPY, **changes).digest != COPY.digest


def test_the_digest_survives_a_message_and_the_order_of_options() -> None:
    options = {"a": {"x": 1, "y": (1, 2)}, "b": b"\0"}
    turned = {"b": b"\0", "a": {"y": [1, 2], "x": 1}}
    one, other = (attrs.evolve(COPY, options=given) for given in (options, turned))
    assert one.digest == other.digest
    assert CompactionJob.from_plain(one.to_plain()).digest == one.digest
    same = {"id": "k", "attempt": 3, "lease_s": 1.0, "heartbeat_s": 2.0}
    assert attrs.evolve(COPY, **same).digest == COPY.digest


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-3], lambda data: data[:-1] + b"?", lambda _: seal({"else": 1})],
    ids=["torn", "altered", "of something else"],
)
def test_a_claim_that_cannot_be_read_belongs_to_another_job(
    here: ObjectStorage, storage: ObjectStorage, damage: Callable[[bytes], bytes]
) -> None:
    perform(COPY, Copying(), storage, lambda: False)
    claim = here.get(COPY.claim_name)
    here.delete([COPY.claim_name, COPY.result_name])
    here.put(COPY.claim_name, damage(claim))
    with pytest.raises(TakenPrefixError, match="compaction j cannot run"):
        perform(COPY, Copying(), storage, lambda: False)
    with pytest.raises(ObjectNotFoundError):
        COPY.stored_result(here)


def test_a_torn_result_is_no_result(here: ObjectStorage, storage: ObjectStorage) -> None:
    perform(COPY, Copying(), storage, lambda: False)
    result = here.get(COPY.result_name)
    here.delete([COPY.result_name])
    here.put(COPY.result_name, result[:-1])
    with pytest.raises(TornObjectError):
        COPY.stored_result(here)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda _: seal({"job_digest": FORGED.digest}),
        lambda _: b"",
    ],
    ids=["torn", "altered", "of another job", "empty"],
)
def test_a_run_whose_result_has_no_room_is_not_done(
    here: ObjectStorage, storage: ObjectStorage, damage: Callable[[bytes], bytes]
) -> None:
    """Otherwise its owner would wait for a result that nobody can store."""
    perform(COPY, Copying(), storage, lambda: False)
    result = here.get(COPY.result_name)
    here.delete([COPY.result_name])
    here.put(COPY.result_name, damage(result))
    with pytest.raises(TakenPrefixError, match=f"{COPY.result_name} in .* is not this job's"):
        perform(COPY, Copying(), storage, lambda: False)


@pytest.mark.parametrize(
    "changes",
    [
        {"operator": name}
        for name in ("q", "q/u/data", "../q", "q/..", "/q", "q/", "q\\u/v", "", "s3://q/u")
    ]
    + [
        {"output_prefix": prefix}
        for prefix in (
            "",
            "data/",
            "data/p/",
            JOB.output_prefix[:-1],
            f"{JOB.output_prefix}run-{'0' * 24}/",
            f"../{JOB.output_prefix}",
            f"from/q/v/{JOB.output_prefix}",
            JOB.output_prefix.replace("data", "versions"),
            JOB.output_prefix.replace("compaction", "lsm"),
            f"{JOB.output_prefix}\n",
        )
    ]
    + [
        {"inputs": [attrs.evolve(FILE, name=name)]}
        for name in (
            "../x",
            "/etc/passwd",
            "from/../../x",
            "data//x",
            "a\0b",
            "file:///x",
            f"{JOB.output_prefix}result",
        )
    ],
    ids=repr,
)
def test_names_that_leave_their_place_are_refused(
    here: ObjectStorage, storage: ObjectStorage, changes: dict[str, object]
) -> None:
    before = [info.name for info in storage.list()]
    with pytest.raises(ValueError):
        perform(attrs.evolve(JOB, **changes), Copying(), storage, lambda: False)
    assert [info.name for info in storage.list()] == before
