"""Random histories that are exported go in again, and their jobs go on alike."""

from __future__ import annotations

import random

import pytest

from forebay_state_processor.importing import import_state
from forebay_state_processor.importing.replacing import replace_version
from forebay_state_processor.importing.tables import Tables
from forebay_state_processor.reading import open_state
from forebay_testing.scripts import Script

from .histories import KEYS, STATES, Churn, History, accesses

pytestmark = pytest.mark.long


def run_history(make_job, path, seed):
    history = History(make_job, path, seed, {})
    history.batch()
    for _ in range(6):
        history.step()
    history.batch()
    return history


def opened(path, query):
    return open_state(path, query=query, uid="operator", provisional=True, show_expired=True)


def content(snapshot):
    """Return all rows and timers."""
    found = {
        name: {
            (row.key, row.namespace): (row.value, row.written or None)
            for row in snapshot.scan(name)
        }
        for name in snapshot.states
    }
    return found, {*snapshot.timers()}


def exported(snapshot, *, whole):
    if whole:
        return snapshot.table()
    return {name: snapshot.to_arrow(name) for name in snapshot.states}


def rows(seed):
    numbers = random.Random(seed)
    return [Script(key, n, [*accesses(numbers)]) for n, key in enumerate(KEYS)]


def check_new(history, path, query, *, whole):
    """Import under another name, and run the same batch there."""
    with opened(path, "query") as old:
        import_state(
            path,
            query=query,
            uid="operator",
            tables=exported(old, whole=whole),
            timers=old.timer_table(),
            like=old,
            conf={"spark.forebay.state.backend": old.backend},
        )
        with opened(path, query) as new:
            assert content(new) == content(old)
    return history.make_job(clock=history.clock, query=query, parallelism=3)


def check_replaced(path, *, whole):
    """Replace the newest version by what it holds."""
    with opened(path, "query") as old:
        replace_version(old, Tables.of(exported(old, whole=whole), old.timer_table()))
        with opened(path, "query") as new:
            assert new.run != old.run
            assert content(new) == content(old)


def round_trip(make_job, path, seed):
    history = run_history(make_job, path, seed)
    jobs = [check_new(history, path, f"whole {whole}", whole=whole) for whole in (True, False)]
    for whole in (True, False):
        check_replaced(path, whole=whole)
    history.restart()
    outputs = [sorted(job.run(Churn(STATES), rows(seed)), key=repr) for job in (history.job, *jobs)]
    assert outputs[1:] == outputs[:1] * 2
    left = []
    for query in ("query", "whole True", "whole False"):
        with opened(path, query) as snapshot:
            left.append(content(snapshot))
    assert left[1:] == left[:1] * 2


def test_what_is_exported_goes_in_again(make_job, tmp_path):
    round_trip(make_job, str(tmp_path), seed=4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200, 230))
def test_more_histories_go_in_again(make_job, tmp_path, seed):
    round_trip(make_job, str(tmp_path), seed)
