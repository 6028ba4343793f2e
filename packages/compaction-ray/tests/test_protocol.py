"""Messages of other releases are understood; data that is not a message is refused."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_compaction_ray.messages import JobView, Submission
from forebay_compaction_ray.protocol import (
    MESSAGE_BYTES,
    OLDEST,
    VERSION,
    MalformedMessageError,
    RefusedError,
    decode,
    pack,
    unpack,
)
from forebay_state_api.contract.compaction_job import CompactionJob
from forebay_state_api.contract.compaction_service import CompactionFault, CompactionPhase
from forebay_state_api.contract.files import StateFile
from forebay_state_api.keys import KeyGroupRange

RANGE = KeyGroupRange(0, 63)
SUBMISSION = Submission(
    job=CompactionJob(
        id="0123456789abcdef01234567",
        operator="query/op",
        format="lsm-1",
        inputs=[
            StateFile(
                name="data/fffffffffffe/lsm-aa",
                size=12_345,
                range=RANGE,
                meta={"entries": 7, "deletes": 1, "first": 1 << 63, "checksum": b"\x00\xff"},
            )
        ],
        output_prefix="data/fffffffffffd/compaction-bb/",
        range=RANGE,
        now_us=1_700_000_000_000_000,
        target_bytes=1 << 26,
        lease_s=1800.0,
        heartbeat_s=60.0,
        attempt=2,
        options={"bottom": True, "ttl": {"visits": 3_600_000_000}, "compression": "lz4"},
    ),
    storage="default",
)
VIEW = JobView(
    job_id="0123456789abcdef01234567",
    phase=CompactionPhase.FAILED,
    worker="w3",
    fault=CompactionFault.CORRUPTION,
    code="",
    message="file 'data/x' is truncated",
)
REFUSAL = RefusedError("queue_full", "64 jobs wait")
MESSAGES = {
    "submission": (SUBMISSION.to_plain(), Submission.from_plain, SUBMISSION),
    "view": (VIEW.to_plain(), JobView.from_plain, VIEW),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_what_a_newer_release_adds_is_ignored(name):
    plain, read, wanted = MESSAGES[name]
    assert read(unpack(pack(plain))) == wanted
    newer = {**plain, "news": [1], "v": VERSION + 1, "min_v": OLDEST}
    if "job" in newer:
        newer["job"] = {**newer["job"], "news": {"a": 1}}
    assert read(unpack(msgpack.packb(newer))) == wanted


def test_refusals_travel():
    found = RefusedError.from_plain(REFUSAL.to_plain())
    assert (found.code, found.message) == ("queue_full", "64 jobs wait")
    with pytest.raises(MalformedMessageError):
        RefusedError.from_plain({"why": "whatever"})


def test_versions_that_do_not_go_together():
    for v, min_v in ((OLDEST - 1, OLDEST - 1), (VERSION + 3, VERSION + 1)):
        with pytest.raises(RefusedError, match="upgrade"):
            unpack(msgpack.packb({"v": v, "min_v": min_v}))
    with pytest.raises(MalformedMessageError, match="version"):
        unpack(msgpack.packb({"v": 1}))


def test_a_message_that_is_too_long():
    with pytest.raises(MalformedMessageError, match="bytes"):
        decode(b"\x80" * (MESSAGE_BYTES + 1))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_in_an_orderly_way(data):
    try:
        message = decode(data)
    except MalformedMessageError:  # an orderly refusal
        return
    assert isinstance(message, dict)
    for read in (Submission.from_plain, JobView.from_plain):
        with pytest.raises(MalformedMessageError):
            read(message)


@pytest.mark.long
@given(st.data())
def test_a_submission_with_a_field_of_another_kind(data):
    """Any value of a field gives a message or an orderly refusal."""
    plain = SUBMISSION.to_plain()
    field = data.draw(st.sampled_from(sorted(plain["job"])))
    plain["job"][field] = data.draw(
        st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=3)
    )
    try:
        found = Submission.from_plain(plain)
    except MalformedMessageError:  # an orderly refusal
        return
    assert found.storage == "default"


def test_work_is_the_same_however_often_it_is_submitted():
    import attrs

    again = attrs.evolve(
        SUBMISSION, job=attrs.evolve(SUBMISSION.job, id="x", output_prefix="y/", attempt=9)
    )
    assert again.work == SUBMISSION.work
    for change in ({"now_us": 1}, {"operator": "query/other"}, {"options": {}}):
        other = attrs.evolve(SUBMISSION, job=attrs.evolve(SUBMISSION.job, **change))
        assert other.work != SUBMISSION.work
    assert attrs.evolve(SUBMISSION, storage="b").work != SUBMISSION.work
