"""Explanations of crafted micro-batches: one for each phase, and what is found besides."""

import pytest

from forebay_engine.versions.format.figures import PHASES
from forebay_engine.versions.format.manifest import read_manifest
from forebay_state_api.metrics.phases import Phase
from forebay_state_processor.observing import list_operator
from forebay_state_processor.observing.evidence import Evidence
from forebay_state_processor.observing.explaining import explain, slowest_of

CALM = {"phase_seconds": {"input": 0.2, "function": 0.3, "commit_files": 0.1}, "rows_in": 100}


def slow(phase, **figures):
    return {"phase_seconds": {**CALM["phase_seconds"], phase: 4.0}, "rows_in": 100, **figures}


@pytest.fixture
def explained(job, storage):
    """Return a function that explains a batch whose subtask 1 has the given figures."""

    def of(metrics, *, backend="lsm", cleared=False, run="a", parallelism=2):
        job.versions(1, 5, metrics=CALM, backend=backend)
        job.parallelism = parallelism
        epoch = 1 if run == "a" else 2
        begun = [job.begin(6, subtask, run=run, epoch=epoch) for subtask in range(parallelism)]
        for made in begun:
            job.commit(made, metrics=metrics if made.subtask == 1 else CALM, backend=backend)
        timeline = list_operator(storage).timeline
        version = timeline.of_batch(5)
        manifest = None if cleared else read_manifest(storage, version.slowest.manifest)
        return explain(Evidence.of(version, timeline, manifest))

    return of


CASES = [
    ("input", {}, "the shuffle delivered rows slowly", "Spark's UI"),
    ("open", {"restored_bytes": 12_000}, "read 12,000 bytes", "state.cache-bytes"),
    ("open", {}, "the function's open() did", "forebay doctor"),
    ("decode", {}, "100 rows were made of Arrow batches", "before keyed()"),
    ("read_ahead", {"runs_max": 9}, "in up to 9 runs", "compaction.service=ray"),
    (
        "state_wait",
        {"cache_hits": {"memory": 10}, "cache_misses": {"memory": 90}},
        "missed 90 of 100 look-ups",
        "lsm.block-cache-bytes",
    ),
    ("call_wait", {"calls_awaited": 70}, "calls to the outside, 70 of them", "in-flight-limit"),
    ("call_wait", {"call_answered": 9}, "; 9 calls were answered from what", "in-flight-limit"),
    ("function", {"timers_fired": 3}, "ran for 100 rows and 3 timers", "profile the function"),
    ("function", {"blocked_max": 5_000}, "5,000 records waited for an earlier", "the hot key"),
    ("output", {"rows_out": 8_000}, "8,000 emitted rows", "narrower rows"),
    ("output_wait", {}, "the sink, took rows slowly", "look at the sink"),
    ("commit_snapshot", {"values_expired": 77}, "77 expired values", "StateTtlConfig"),
    ("commit_files", {"bytes_written": 2_000_000}, "2,000,000 bytes at 0.5 MB/s", "trigger"),
    ("commit_files", {"bytes_written": 20_000}, "writing 20,000 bytes took that long", "doctor"),
    (
        "commit_files",
        {"bytes_written": 20_000, "compaction_stalled_seconds": 3.5},
        "the commit itself compacted for 3.5 s",
        "compaction.service=ray",
    ),
    (
        "commit_files",
        {"compaction_stalled_seconds": 3.5},
        "the commit itself compacted for 3.5 s",
        "compaction.service=ray",
    ),
    ("commit_check", {}, "the store is slow, or throttles", "forebay doctor"),
    ("commit_manifest", {}, "the store is slow, or throttles", "forebay doctor"),
    ("commit_install", {}, "compactions submitted", "state.cache-bytes"),
    ("rest", {}, "waited for a CPU", "more cores"),
]


@pytest.mark.parametrize(("phase", "figures", "cause", "change"), CASES)
def test_each_phase(explained, phase, figures, cause, change):
    found = explained(slow(phase, **figures))
    assert (found.batch, found.subtask, found.phase, found.phase_seconds) == (5, 1, phase, 4.0)
    assert cause in found.cause
    assert change in found.change
    usual = CALM["phase_seconds"].get(phase, 0)
    assert found.numbers["usual_phase_s"] == pytest.approx(usual)
    assert f"is the phase {phase}: {Phase(phase).meaning[0].lower()}" in found.text


def test_every_phase_has_its_case():
    assert {phase for phase, *_ in CASES} == set(PHASES) == {phase.value for phase in Phase}


def test_the_paragraph_has_the_numbers(explained):
    text = explained(slow("function")).text
    assert text.startswith(
        "Batch 5 took 4.3 s in subtask 1, its slowest (the other subtasks 600 ms at the median; "
        "other micro-batches 600 ms). Of this, 4 s (93 %, usually 300 ms) is the phase function:"
    )
    assert "\n" not in text


def test_the_phase_that_grew_counts_more_than_the_one_that_is_always_long(job, storage):
    waits = {"phase_seconds": {"input": 3.0, "commit_files": 0.1}}
    job.versions(1, 5, metrics=waits)
    job.version(6, metrics={"phase_seconds": {"input": 3.0, "commit_files": 2.9}})
    timeline = list_operator(storage).timeline
    assert explain(Evidence.of(timeline.newest, timeline, None)).phase == "commit_files"
    assert explain(Evidence.of(timeline.of_batch(2), timeline, None)).phase == "input"


def test_a_subtask_with_most_rows(explained):
    found = explained(slow("function", rows_in=9_000, group_rows=[200, 8_000, 800, 0]))
    assert "it had 9,000 rows" not in found.cause, "below twice the mean"
    assert "8,000 of its 9,000 rows were in key group 5" in found.cause
    assert found.numbers["hottest_key_group"] == {"group": 5, "rows": 8_000}
    assert "split the hot key" in found.change


def test_skew_without_a_hot_key_group(explained):
    found = explained(
        slow("state_wait", rows_in=9_000, group_rows=[2_000, 2_500, 2_500, 2_000]), parallelism=4
    )
    assert "it had 9,000 rows, 3.9 times the mean of all subtasks" in found.cause
    assert found.numbers["hottest_key_group"] is None


@pytest.mark.parametrize("rows", [1, 2, 3, 999])
def test_few_rows_are_neither_skewed_nor_hot(job, storage, rows):
    job.version(1, metrics=CALM)
    job.commit(job.begin(2, 0), metrics={**CALM, "rows_in": 0})
    job.commit(job.begin(2, 1), metrics=slow("function", rows_in=rows, group_rows=[rows, 0, 0, 0]))
    timeline = list_operator(storage).timeline
    manifest = read_manifest(storage, timeline.newest.slowest.manifest)
    found = explain(Evidence.of(timeline.newest, timeline, manifest))
    assert found.cause == f"the function ran for {rows} rows"
    assert "profile the function" in found.change
    assert (found.numbers["rows_over_mean"], found.numbers["hottest_key_group"]) == (2.0, None)


def test_a_commit_of_much_is_as_uneven_as_its_rows(explained):
    uneven = {"rows_in": 9_000, "group_rows": [200, 8_000, 800, 0]}
    found = explained(slow("commit_files", bytes_written=2_000_000, **uneven))
    assert "8,000 of its 9,000 rows were in key group 5" in found.cause


def test_a_hot_key_is_no_reason_for_a_slow_write_of_little(explained):
    uneven = {"rows_in": 9_000, "group_rows": [200, 8_000, 800, 0]}
    found = explained(slow("commit_files", bytes_written=20_000, **uneven))
    assert "the store is slow, or throttles" in found.cause


def test_a_write_of_little_is_not_judged_without_the_manifest(explained):
    """It would show whether the commit compacted."""
    found = explained(slow("commit_files", bytes_written=20_000), cleared=True)
    assert "the commit wrote 20,000 bytes" in found.cause


def test_a_short_compaction_is_no_reason_for_a_long_commit(explained):
    found = explained(slow("commit_files", bytes_written=20_000, compaction_stalled_seconds=0.02))
    assert "the commit wrote 20,000 bytes" in found.cause


def test_a_hot_key_is_no_reason_to_wait_for_spark(explained):
    found = explained(slow("input", rows_in=9_000, group_rows=[200, 8_000, 800, 0]))
    assert "shuffle" in found.cause


COLD = ("decode", "read_ahead", "state_wait", "function", "output", "rest")


@pytest.mark.parametrize("phase", COLD)
def test_a_cold_start_is_no_reason_to_change_the_job(explained, phase):
    found = explained(slow(phase), run="b")
    assert "the first micro-batch after a start: for 100 rows" in found.cause
    assert "explain a later micro-batch" in found.change


@pytest.mark.parametrize("phase", COLD)
def test_the_query_s_very_first_batch_is_cold_too(job, storage, phase):
    job.version(1, metrics=slow(phase))
    job.versions(2, 5, metrics=CALM)
    timeline = list_operator(storage).timeline
    found = explain(Evidence.of(timeline.of_batch(0), timeline, None))
    assert "the first micro-batch after a start" in found.cause


def test_many_rows_take_their_time_after_a_start_too(explained):
    found = explained({**slow("decode"), "rows_in": 50_000}, run="b")
    assert "50,000" in found.cause
    assert "first micro-batch" not in found.cause


def test_the_first_batch_after_a_restart_and_after_a_rescale(explained):
    assert "after a restart" in explained(slow("open"), run="b").cause


def test_a_rescale(explained):
    assert "the parallelism changed from 2 to 4" in explained(slow("open"), parallelism=4).cause


def test_another_backend_s_caches_are_not_lsm_s(explained):
    found = explained(slow("state_wait"), backend="shelf")
    assert "the caches of the backend shelf" in found.change
    assert "lsm" not in found.change


def test_without_the_manifest_the_name_s_figures_count(explained):
    found = explained(slow("state_wait", runs_max=12, blocked_max=7), cleared=True)
    assert "up to 12 runs" in found.cause
    assert "blocked_max" not in found.numbers["figures"]
    assert found.text.endswith("the few figures that the history keeps.")


def test_the_slowest_of_the_newest(job, storage):
    for version, seconds in enumerate((9.0, 1.0, 3.0, 2.0), 1):
        job.version(version, metrics={"phase_seconds": {"function": seconds}})
    job.version(5)
    timeline = list_operator(storage).timeline
    assert slowest_of(timeline, 100) == 2, "the first one after the start is not chosen"
    assert slowest_of(timeline, 4) == 2
    assert slowest_of(timeline, 1) is None
    assert Evidence.of(timeline.newest, timeline, None) is None


def test_the_first_batch_after_a_start_is_chosen_only_alone(job, storage):
    job.version(1, metrics={"phase_seconds": {"open": 9.0}})
    assert slowest_of(list_operator(storage).timeline, 100) == 0
    job.version(2, metrics=CALM)
    job.version(3, metrics={"phase_seconds": {"open": 8.0}}, run="b", epoch=2)
    assert slowest_of(list_operator(storage).timeline, 100) == 1
