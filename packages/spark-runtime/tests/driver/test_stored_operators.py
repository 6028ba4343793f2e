"""Reports of stored operators that are not in the plan of a starting query."""

from __future__ import annotations

import logging
import uuid

import attrs
import pytest

from forebay_engine.versions import RestoreFrom
from forebay_spark_runtime.driver import stored_operators
from forebay_spark_runtime.driver.options import KeyedOptions
from forebay_spark_runtime.driver.session import MicroBatch
from forebay_state_api.settings import resolve_settings
from forebay_state_api.storage.opening import open_storage

QUERY = str(uuid.uuid4())


def options(state_dir, query=None):
    return KeyedOptions(
        uid="counts",
        parallelism=2,
        max_parallelism=128,
        batch=MicroBatch(query=query),
        state_dir=state_dir,
        order_by=(),
        new_state=False,
        settings=resolve_settings({}),
        keyed_uuid=str(uuid.uuid4()),
    )


def plan(made, *more):
    observed = [f"CollectMetrics forebay:{one.uid}:{one.keyed_uuid}, [count(1)], 3" for one in made]
    return "\n+- ~".join(["Write", *observed, *more])


@pytest.fixture
def logged(caplog, done):
    caplog.set_level(logging.DEBUG, "forebay_spark_runtime.driver.stored_operators")

    def log(text, query=QUERY, **how):
        caplog.clear()
        stored_operators.log_kept(query, text, **how)
        done(stored_operators._pool)
        return [(one.levelname, one.getMessage()) for one in caplog.records]

    return log


@pytest.fixture
def state_dir(tmp_path):
    storage = open_storage(tmp_path)
    for folder in (f"{QUERY}/counts", f"{QUERY}/a=3ab", f"{QUERY}/old", "another/other"):
        storage.put(f"{folder}/epochs/1", b"")
    return str(tmp_path)


def test_stored_operators_outside_the_plan_are_logged(logged, state_dir):
    made = options(state_dir)
    stored_operators.remember(made)
    where = f"state kept in {state_dir}"
    message = f"query {QUERY}: operators that are not in its plan, with {where}"
    assert logged(plan([made])) == [("INFO", f"{message}: a:b, old")]
    others = [attrs.evolve(made, uid=uid, keyed_uuid=str(uuid.uuid4())) for uid in ("a:b", "new")]
    assert logged(plan([made, *others])) == [("INFO", f"{message}: old")]
    others[1] = attrs.evolve(others[1], uid="old")
    assert logged(plan([made, *others])) == []


def test_state_under_a_name_of_the_user_s_own_is_left_alone(logged, state_dir):
    made = options(state_dir, query="mine")
    stored_operators.remember(made)
    assert logged(plan([made])) == []


def test_a_new_checkpoint_beside_state_of_the_uid_is_a_warning(monkeypatch, logged, state_dir):
    open_storage(state_dir).put("old=2did/counts/epochs/1", b"")
    made, other = options(state_dir), attrs.evolve(options(state_dir), uid="other")
    for one in (made, other):
        stored_operators.remember(one)
    new = str(uuid.uuid4())
    given = []
    monkeypatch.setattr("warnings.warn", lambda message, *_, **__: given.append(str(message)))

    def begun(*operators):
        caplog_lines = logged(plan(operators), query=new, is_new=True)
        return [line for level, line in caplog_lines if level == "WARNING"]

    (first, second) = begun(made, other)
    assert f"query {new} has a new checkpoint" in first
    assert f"state of operator 'counts'; {state_dir} holds state of that uid of" in first
    assert all(repr(one) in first for one in (QUERY, "old-id"))
    assert "'other'" in second
    assert "'another'" in second
    assert given == [first, second]
    assert logged(plan([made]), query=QUERY) != []  # no warning of others if it continues
    for chosen in ({"restore": RestoreFrom(QUERY)}, {"new_state": True}):
        said = attrs.evolve(options(state_dir), **chosen)
        stored_operators.remember(said)
        assert begun(said) == []
    monkeypatch.undo()


def test_so_is_the_first_batch_of_for_each_batch(caplog, state_dir, done):
    batch = MicroBatch(query="new", spark_query="new", batch_id=0, run_id="r")
    first = attrs.evolve(options(state_dir), batch=batch)
    stored_operators.warn_in_first_batch(first)
    done(stored_operators._pool)
    assert "query new has a new checkpoint" in caplog.text
    assert repr(QUERY) in caplog.text
    caplog.clear()
    for changed in ({"batch_id": 1}, {"spark_query": None}):
        stored_operators.warn_in_first_batch(
            attrs.evolve(first, batch=attrs.evolve(batch, **changed))
        )
    stored_operators.warn_in_first_batch(attrs.evolve(first, new_state=True))
    done(stored_operators._pool)
    assert caplog.text == ""


def test_only_so_many_are_remembered(monkeypatch, logged, state_dir):
    monkeypatch.setattr(stored_operators, "_homes", {})
    monkeypatch.setattr(stored_operators, "_REMEMBERED", 1)
    made = [options(state_dir) for _ in range(2)]
    for one in made:
        stored_operators.remember(one)
    assert logged(plan(made[:1])) == []
    assert logged(plan(made[1:]))


def test_where_nothing_is_stored_no_plan_is_read(monkeypatch):
    monkeypatch.setattr(stored_operators, "_homes", {})
    stored_operators.log_kept(QUERY, lambda: pytest.fail("it was read"))


def test_a_query_without_operators(logged):
    assert logged(plan([], "CollectMetrics mine, [count(1)], 3")) == []


def test_storage_that_cannot_be_listed_is_no_trouble(logged, tmp_path):
    made = options("no-such-scheme://state")
    stored_operators.remember(made)
    ((level, message),) = logged(plan([made]))
    assert (level, QUERY in message) == ("DEBUG", True)
