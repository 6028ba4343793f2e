"""Each alert of `monitoring/alerts.yml` fires where it should, and none for a job that is well."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from forebay_engine.versions.format.figures import PHASES
from forebay_state_api.storage.opening import open_storage
from forebay_state_processor.observing import DirectoryWatch

from ..on_call.incidents import (
    INCIDENTS,
    ORDINARY,
    RemindOnly,
    leaking_timers,
    ordinary,
)

yaml = pytest.importorskip("yaml", reason="the extra [server] brings it with Ray")

pytestmark = pytest.mark.servers

RULES = Path(__file__).parents[2] / "monitoring" / "alerts.yml"
MINUTES = 9 * 60
"""How long series last; the slowest alert waits for six hours."""


def phase(name):
    return f'forebay_keyed_phase_seconds_total{{phase="{name}"}}'


CALM = {
    "forebay_keyed_commits_total": 4,
    phase("input"): 0.01,
    phase("open"): 0.02,
    phase("function"): 0.02,
    phase("commit_files"): 0.04,
    phase("commit_check"): 0.02,
    phase("commit_manifest"): 0.02,
    "forebay_keyed_rows_in_total": 60_000,
    "forebay_keyed_group_rows_max_total": 9_000,
    "forebay_keyed_keys_touched_total": 3_000,
    "forebay_keyed_timers_registered_total": 60_000,
    "forebay_keyed_timers_added_total": 3_000,
    "forebay_keyed_timers_fired_total": 2_900,
    "forebay_keyed_failed_records_total": 0,
    'forebay_keyed_state_read_seconds_bucket{le="0.3"}': 1_000,
    'forebay_keyed_state_read_seconds_bucket{le="1"}': 1_000,
    'forebay_keyed_state_read_seconds_bucket{le="+Inf"}': 1_000,
    "forebay_keyed_compaction_stalled_seconds_total": 0,
    "forebay_wait_tries_total": 1_000,
    "forebay_wait_retries_total": 10,
    "forebay_wait_failed_total": 0,
    "forebay_compaction_client_fallbacks_total": 0,
    "forebay_compaction_jobs_lost_total": 0,
}
"""Counter of a small job that is well → what a minute adds. More than half of its time is commits,
of which each takes 20 ms."""
GAUGES = {
    "forebay_keyed_runs_max": 6,
    "forebay_keyed_state_bytes": 2_000_000_000,
    "forebay_compaction_jobs_queued": 3,
}
CASES = {
    "ForebayOperatorStalled": dict.fromkeys(CALM, 0),
    "ForebayCommitSlow": {phase("commit_files"): 5},
    "ForebayStorageSlow": {phase("commit_check"): 1.5},
    "ForebayOpeningSlow": {phase("open"): 25},
    "ForebayHotKeyGroup": {"forebay_keyed_group_rows_max_total": 40_000},
    "ForebayCompactionBehind": {"forebay_keyed_compaction_stalled_seconds_total": 10},
    "ForebayStateGrowing": {},
    "ForebayTimersLeak": {"forebay_keyed_timers_added_total": 60_000},
    "ForebayRecordsFail": {"forebay_keyed_failed_records_total": 1},
    "ForebayWaitRetries": {"forebay_wait_retries_total": 300},
    "ForebayWaitRowsFail": {"forebay_wait_failed_total": 1},
    "ForebayCompactionQueueLong": {},
    "ForebayCompactionFallsBack": {"forebay_compaction_client_fallbacks_total": 1},
    "ForebayCompactionJobsLost": {"forebay_compaction_jobs_lost_total": 1},
}
"""Alert → the counters that differ from those of `CALM`."""
OTHER_GAUGES = {
    "ForebayStateGrowing": {"forebay_keyed_state_bytes": "2000000000+100000000"},
    "ForebayCompactionQueueLong": {"forebay_compaction_jobs_queued": "200+0"},
}
READS_SLOWLY = {
    'forebay_keyed_state_read_seconds_bucket{le="0.3"}': 900,
    'forebay_keyed_state_read_seconds_bucket{le="1"}': 1_000,
}


def wrong(tmp_path, counters, gauges, alerts):
    """Return what promtool says unless just these alerts fire at the end of the series."""
    values = {series: f"0+{added}" for series, added in counters.items()}
    values |= {
        series: value if "+" in str(value) else f"{value}+0" for series, value in gauges.items()
    }
    asked = {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": f"{MINUTES - 1}m",
        "exp_samples": [{"labels": f'{{alertname="{one}"}}', "value": 1} for one in sorted(alerts)],
    }
    series = [{"series": name, "values": f"{one}x{MINUTES}"} for name, one in values.items()]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [asked]}
    rules = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}
    path = tmp_path / "test.yml"
    path.write_text(yaml.safe_dump(rules))
    command = ["promtool", "test", "rules", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_a_job_that_is_well_has_no_alert(tmp_path):
    assert wrong(tmp_path, CALM, GAUGES, set()) == ""


@pytest.mark.parametrize("alert", CASES)
def test_each_alert_fires_alone(alert, tmp_path):
    gauges = GAUGES | OTHER_GAUGES.get(alert, {})
    assert wrong(tmp_path, CALM | CASES[alert], gauges, {alert}) == ""


def test_every_alert_has_a_case():
    groups = yaml.safe_load(RULES.read_text())["groups"]
    assert {rule["alert"] for group in groups for rule in group["rules"]} == set(CASES)


EVEN_ROWS = {
    "forebay_keyed_commits_total": 4 * 600,
    "forebay_keyed_rows_in_total": 1_200,
    "forebay_keyed_group_rows_max_total": 800,
}
"""Ten micro-batches a second, each with two rows of any keys: one row is half of them."""
MANY_SUBTASKS = {
    "forebay_keyed_commits_total": 64,
    "forebay_keyed_group_rows_max_total": 40_000,
}
"""One micro-batch a minute, with a hot key."""


@pytest.mark.parametrize(
    ("counters", "alerts"), [(EVEN_ROWS, set()), (MANY_SUBTASKS, {"ForebayHotKeyGroup"})]
)
def test_a_hot_key_is_found_among_many_rows_alone(counters, alerts, tmp_path):
    assert wrong(tmp_path, CALM | counters, GAUGES, alerts) == ""


def test_reads_that_are_slow_are_slow_storage_too(tmp_path):
    assert wrong(tmp_path, CALM | READS_SLOWLY, GAUGES, {"ForebayStorageSlow"}) == ""


def test_many_runs_are_a_compaction_behind(tmp_path):
    gauges = GAUGES | {"forebay_keyed_runs_max": 10}
    assert wrong(tmp_path, CALM, gauges, {"ForebayCompactionBehind"}) == ""


def measured(directory, every=1):
    """Return what micro-batches of the job in a state directory add in a minute, at the newest."""
    (view,) = DirectoryWatch(open_storage(directory)).views().values()
    versions = view.timeline.versions[:every]
    names = ("rows_in", "group_rows_max", "keys_touched", "timers_added", "timers_fired")
    found = {
        f"forebay_keyed_{name}_total": sum(one.count(name) for one in versions) / every
        for name in names
    }
    found["forebay_keyed_commits_total"] = versions[0].parallelism
    for name in PHASES:
        found[phase(name)] = sum(one.phase_ms.get(name, 0) for one in versions) / every / 1_000
    return found


@pytest.mark.parametrize(
    ("incident", "alerts"),
    [
        ("calm", set()),
        ("hot-key", {"ForebayHotKeyGroup"}),
        ("slow-storage", {"ForebayStorageSlow"}),
        ("leaking-timers", {"ForebayTimersLeak"}),
    ],
)
def test_an_incident_of_the_page_is_found(incident, alerts, tmp_path):
    INCIDENTS[incident](tmp_path / "state")
    assert wrong(tmp_path, measured(tmp_path / "state"), {}, alerts) == ""


def test_timers_of_a_function_without_state_leak_too(tmp_path):
    leaking_timers(tmp_path / "state", RemindOnly)
    alerts = {"ForebayTimersLeak"}
    assert wrong(tmp_path, measured(tmp_path / "state"), {}, alerts) == ""


@pytest.mark.parametrize("function", ORDINARY)
def test_timers_of_windows_sessions_and_expiry_are_no_leak(function, tmp_path):
    ordinary(function, tmp_path / "state", "lsm")
    assert wrong(tmp_path, measured(tmp_path / "state", every=10), {}, set()) == ""
