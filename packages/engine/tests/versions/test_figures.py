"""Figures in the names of manifests: short, complete where there is room, never in the way."""

from datetime import UTC, datetime

import attrs
import pytest

from forebay_engine.versions.format import layout
from forebay_engine.versions.format.figures import ALL_COUNTS, COUNTS, PHASES, Figures
from forebay_engine.versions.format.layout import Coordinates
from forebay_engine.versions.format.markers import Made
from forebay_state_api.contract.object_storage import ObjectInfo
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.metrics import KEYED, Phase

NOW = datetime(2026, 1, 2, tzinfo=UTC)
MADE = Coordinates(
    version=5,
    max_parallelism=128,
    parallelism=4,
    subtask=3,
    range=KeyGroupRange(96, 127),
    epoch=4,
    run_key="0123456789abcdef",
    attempt_id=77,
    random_id="ab" * 12,
)
LARGEST = attrs.evolve(
    MADE,
    max_parallelism=32_768,
    parallelism=32_768,
    subtask=32_767,
    range=KeyGroupRange(32_767, 32_767),
    epoch=10**8,
    attempt_id=10**9,
)


def made_of(figures: Figures, coordinates: Coordinates = MADE) -> Made:
    name = layout.manifest_name(coordinates, 1_700_000_000_123, 4_711, figures)
    assert len(name.rpartition("/")[2]) <= 240
    found = Made.parse(ObjectInfo(name=name, size=4_711, modified=NOW))
    assert found is not None
    assert (found.by, found.manifest, found.batch_ms) == (coordinates, True, 1_700_000_000_123)
    return found


@pytest.mark.parametrize(
    "figures",
    [
        Figures(),
        Figures({"rows_in": 0}),
        Figures({"rows_in": 100_000, "state_bytes": 10**12, "keys": 35}),
        Figures({}, {"input": 12, "commit_files": 36**4}),
    ],
)
def test_a_name_holds_figures_and_0_is_not_unknown(figures):
    assert made_of(figures).figures == figures


def test_a_busy_batch_leaves_out_the_last_counts():
    counts = {
        "rows_in": 5_000_000,
        "rows_out": 5_000_000,
        "state_bytes": 50 << 30,
        "keys": 40_000_000,
        "written_bytes": 200 << 20,
        "files": 60,
        "runs_max": 8,
        "compactions_pending": 2,
        "restored_bytes": 2 << 30,
        "failed_records": 12,
        "late_rows": 5_000,
        "late_rows_dropped": 5_000,
        "rows_ahead": 3,
        "puts_and_lists": 8,
        "gets": 40,
        "timers_fired": 1_000_000,
        "timers_registered": 5_000_000,
        "timers_added": 1_000_000,
        "keys_touched": 2_000_000,
        "group_rows_max": 200_000,
    }
    assert counts.keys() == COUNTS.keys()
    busy = Figures(counts, dict.fromkeys(PHASES, 1_500))
    left_out = {"late_rows_dropped", "rows_ahead", "puts_and_lists", "gets", "timers_registered"}
    kept = {name: count for name, count in counts.items() if name not in left_out}
    assert made_of(busy).figures == attrs.evolve(busy, counts=kept)


def test_what_symptoms_need_comes_first():
    counts = dict.fromkeys(COUNTS, 36**3)
    text = Figures(counts).text(6 * 5)
    needed = ["rows_in", "group_rows_max", "keys_touched", "timers_added", "timers_fired"]
    assert list(Figures.parse(text).counts) == needed


def test_the_order_of_codes_in_a_name_does_not_matter():
    text = "I1RI2sRO3TF4TR5TA6KT7GR8"
    assert Figures.parse(text).counts == {
        "rows_in": 100,
        "rows_out": 3,
        "timers_fired": 4,
        "timers_registered": 5,
        "timers_added": 6,
        "keys_touched": 7,
        "group_rows_max": 8,
    }


def test_a_name_that_would_be_too_long_holds_the_first_figures():
    most = Figures(dict.fromkeys(COUNTS, 36**8), dict.fromkeys(PHASES, 36**5))
    found = made_of(most, LARGEST).figures
    assert found.phase_ms.items() <= most.phase_ms.items()
    assert list(found.phase_ms) == list(PHASES)[: len(found.phase_ms)]
    assert len(found.phase_ms) > 10


def test_a_phase_of_no_time_is_left_out_and_totals_add_up():
    found = made_of(Figures({}, {"open": 0, "function": 3, "rest": 4})).figures
    assert found.phase_ms == {"function": 3, "rest": 4}
    assert found.total_ms == 7
    assert Figures().total_ms is None


def test_codes_are_unique_and_unknown_ones_are_ignored():
    codes = [*PHASES.values(), *ALL_COUNTS.values()]
    assert len(set(codes)) == len(codes)
    assert Figures.parse("RI10ZZ5F2") == Figures({"rows_in": 36}, {"function": 2})


def test_every_phase_and_every_count_is_a_metric():
    assert list(PHASES) == [phase.value for phase in Phase]
    metrics = {metric.key for metric in KEYED}
    assert ALL_COUNTS.keys() - metrics == {"files", "puts_and_lists", "gets"}
