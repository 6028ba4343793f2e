"""The gateway refuses jobs, temporarily or permanently, with the right errors."""

from __future__ import annotations

import math

import attrs
import pytest
from compaction_ray_toys import LIMITS, Stage, counted, in_loop, submission

from forebay_compaction_ray.messages import Submission
from forebay_compaction_ray.protocol import MalformedMessageError, RefusedError, pack
from forebay_compaction_ray.worker.body import EXAMINED
from forebay_state_api.contract.compaction_service import CompactionFault, CompactionPhase
from forebay_state_api.contract.files import StateFile
from forebay_state_api.keys import KeyGroupRange


@in_loop
async def test_a_full_queue_is_a_refusal_that_passes():
    stage = Stage()
    await stage.up()
    for number in range(4):
        await stage.submit(number)
    with pytest.raises(RefusedError) as refused:
        stage.core.submit(submission(9))
    assert refused.value.code == "queue_full"
    assert counted(stage.core, "jobs_rejected", reason="queue_full") == 1


def file(name, size=1):
    return StateFile(name=name, size=size, range=KeyGroupRange(0, 1))


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (submission(storage="other"), "unknown_storage"),
        (submission(file_format="parquet"), "unknown_format"),
        (submission(inputs=[file("../secret")]), "names"),
        (submission(inputs=[file("/etc/passwd")]), "names"),
        (submission(inputs=[file("a\x00b")]), "names"),
        (submission(inputs=[file("s3://bucket/x")]), "names"),
        (submission(inputs=[file("a", 10_001)]), "too_large"),
        (submission(inputs=[file("a", -1)]), "malformed"),
        (submission(inputs=[file(f"a{n}") for n in range(5)]), "too_large"),
    ],
)
@in_loop
async def test_what_can_never_run_is_refused_for_good(given, code):
    stage = Stage()
    await stage.up()
    with pytest.raises(RefusedError) as refused:
        stage.core.submit(given)
    assert refused.value.code == code


@pytest.mark.parametrize(
    "changes",
    [
        {"output_prefix": "../x/"},
        {"output_prefix": "data/000000000000/"},
        {"output_prefix": "versions/000000000000/0/"},
        {"operator": "query"},
        {"operator": "../op"},
        {"operator": ".compaction/mark"},
        {"operator": ".compaction/added"},
        {"operator": "query/op.x"},
        {"operator": "query/=zz"},
    ],
)
@in_loop
async def test_a_job_writes_into_the_folder_of_a_compaction_only(changes):
    stage = Stage()
    await stage.up()
    given = submission()
    with pytest.raises(RefusedError) as refused:
        stage.core.submit(attrs.evolve(given, job=attrs.evolve(given.job, **changes)))
    assert refused.value.code == "names"


@pytest.mark.parametrize("changes", [{"operator": EXAMINED}, {"operator": "a-_0/=c3=bcx"}])
@in_loop
async def test_folders_of_operators_and_of_the_doctor_are_taken(changes):
    stage = Stage()
    await stage.up()
    given = submission()
    stage.core.submit(attrs.evolve(given, job=attrs.evolve(given.job, **changes)))


@pytest.mark.parametrize("seconds", [math.nan, -1.0, math.inf, -math.inf])
@pytest.mark.parametrize("what", ["lease_s", "heartbeat_s"])
@in_loop
async def test_a_lease_that_never_ends_or_never_began_is_refused(what, seconds):
    stage = Stage()
    await stage.up()
    given = submission()
    with pytest.raises(RefusedError, match=rf"a \w+ of {seconds} s") as refused:
        stage.core.submit(attrs.evolve(given, job=attrs.evolve(given.job, **{what: seconds})))
    assert refused.value.code == "malformed"


@pytest.mark.parametrize("seconds", [math.nan, -1.0, math.inf])
@in_loop
async def test_a_wait_that_is_none_is_refused(seconds):
    stage = Stage()
    await stage.up()
    job_id = await stage.submit()
    with pytest.raises(RefusedError, match=rf"a wait of {seconds} s") as refused:
        await stage.core.poll(job_id, seconds)
    assert refused.value.code == "malformed"


@in_loop
async def test_a_job_with_a_field_that_the_gateway_does_not_know_is_refused():
    """The gateway would compute another digest, and so make another job of it."""
    stage = Stage()
    await stage.up()
    whole = submission()
    asked = attrs.evolve(whole, digest=whole.job.digest)
    known = attrs.evolve(asked, job=attrs.evolve(asked.job, options={}))
    with pytest.raises(RefusedError, match="upgrade the service") as refused:
        stage.core.submit(known)
    assert refused.value.code == "older_release"
    stage.core.submit(asked)


@in_loop
async def test_a_job_of_a_format_that_no_worker_has_ends_once_workers_are_up():
    stage = Stage(formats=("other",))
    early = await stage.submit()
    assert await stage.phase(early) is CompactionPhase.QUEUED
    await stage.up()
    await stage.later(LIMITS.ping_every_s)
    view = await stage.core.poll(early)
    assert (view.phase, view.fault) == (CompactionPhase.FAILED, CompactionFault.TRANSIENT)
    assert view.code == "unknown_format"


WRONG = (None, [], ["x"], {}, {"x": 1}, 5, 1.5, math.nan, b"x", True, "x", "", [[]], {"x": []})
"""Values that are of another type than some field, or do not fit it."""
FREE = {"meta", "options"}
"""Fields whose content belongs to the format."""


def places(plain, path=()):
    """Yield the path to each value of plain data."""
    yield path
    parts = plain.items() if isinstance(plain, dict) else ()
    parts = enumerate(plain) if isinstance(plain, list | tuple) else parts
    for key, value in parts:
        if path[-1:] not in [(name,) for name in FREE]:
            yield from places(value, (*path, key))


def replaced(plain, path, value):
    """Return plain data with another value at one place."""
    if not path:
        return value
    first, *rest = path
    if isinstance(plain, dict):
        return {**plain, first: replaced(plain[first], rest, value)}
    return [replaced(one, rest, value) if at == first else one for at, one in enumerate(plain)]


@in_loop
async def test_a_value_of_a_wrong_type_is_refused_as_such():
    """No other error for any message; what is taken has the types of the message."""
    whole = submission(inputs=[file("a")]).to_plain()
    taken = 0
    for path in places(whole):
        for wrong in WRONG:
            given = replaced(whole, path, wrong)
            stage = Stage()
            await stage.up()
            try:
                made = Submission.from_plain(given)
                stage.core.submit(made)
            except (MalformedMessageError, RefusedError):
                continue
            taken += 1
            assert pack(made.to_plain()) == pack(given), (path, wrong)
    assert taken < 60
