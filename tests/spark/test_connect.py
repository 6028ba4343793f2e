"""Scenarios under Spark Connect, which run in turn, with a client in a separate process.

The client cannot see the checkpoint, so the rank of a run decides at a restart: a keyed stream is
restarted by default. Pushed-down filters, older versions and streams of changes run when slow:
Spark's server treats them as in ``test_data_source.py`` and in the package's tests.
"""

from __future__ import annotations

import pyspark
import pytest

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        pyspark.__version__.startswith("3."), reason="the server comes with pyspark from 4.0"
    ),
]


CHANGES = [["ann", "put", 4, None, 2], ["bob", "put", 2, None, 2]]


@pytest.fixture(scope="module")
def everything(connect_server):
    return connect_server.results("default")


@pytest.fixture(scope="module")
def found(everything):
    """The results of keyed functions."""
    return everything["keyed"]


@pytest.fixture(scope="module")
def more(everything, connect_server):
    """The results of slow scenarios, which follow the others."""
    return connect_server.results("more")["keyed"]


@pytest.fixture(scope="module")
def waited(everything):
    """The results of ordered waits alone."""
    return everything["waiting"]


def test_on_a_stream(found):
    assert found["stream"] == [["ann", 1], ["ann", 2], ["bob", 1]]


def test_figures_in_progress_events(found):
    uid, rows, subtasks, phases = found["figures"]
    assert (uid, rows, subtasks) == ("counts", 3, 2)
    assert phases > 10


def test_in_foreach_batch_with_query_and_batch_id(found):
    assert found["foreach_batch"][0] == [["ann", 1], ["ann", 2], ["bob", 1]]


def test_in_foreach_batch_without_them(found):
    assert "pass query= and batch_id= to keyed()" in found["refused"]["without names"]


def test_a_second_operator_of_one_uid_in_one_batch(found):
    says = "keyed() was called twice for operator 'counts' in batch 1"
    assert says in found["refused"]["twice"]


def test_on_a_bounded_dataframe(found):
    once = [["ann", 1], ["ann", 2], ["bob", 1]]
    assert found["bounded"] == [once, once, [["ann", 3], ["ann", 4], ["bob", 2]]]


def test_snapshots_of_state(found):
    assert found["snapshots"] == [["ann", 4], ["bob", 2]]


@pytest.mark.slow
def test_a_snapshot_of_an_older_version(more):
    assert more["older"] == [["ann", 2], ["bob", 1]]


@pytest.mark.slow
def test_a_filter_is_pushed_down_where_the_setting_allows_it(more):
    allowed, forbidden = more["filtered"]
    if pyspark.__version__ < "4.1":
        assert "needs pyspark 4.1 or newer" in allowed
        assert "needs pyspark 4.1 or newer" in forbidden
    else:
        assert allowed == [["bob", 2]]
        assert "DATA_SOURCE_PUSHDOWN_DISABLED" in forbidden


@pytest.mark.slow
def test_a_stream_of_changes(more):
    assert more["changes"] == CHANGES


def test_an_imported_first_version(found):
    assert found["imported"] == [{"n": 2}, [["ann", 8], ["bob", 1]]]


def test_a_broadcast_input(found):
    assert found["broadcast"] == [["ann", 1], ["ann", 10], ["bob", 2], ["bob", 20]]


def test_calls_of_a_service(found):
    assert found["calls"] == [["hello ann", "hello bob"], ["RecordTimeoutError"]]


def test_default_parallelism_is_the_server_s(found):
    assert found["default_parallelism"] == 2


def test_bad_input_is_found_on_the_client(found):
    for message, says in zip(
        found["bad_input"],
        (
            "no column 'users' to key by; the columns are user",
            "the output schema 'user strng' does not parse: [UNSUPPORTED_DATATYPE]",
            "no state backend 'heep'",
            "parallelism 500 is above max_parallelism 128",
        ),
        strict=True,
    ):
        assert says in message


def test_a_schema_may_be_an_object(found):
    assert found["schema_object"] == [["ann", 1]]


def test_a_wait_on_a_bounded_dataframe_in_order(waited):
    assert waited["bounded"] == [[n, n * 2] for n in range(20)]


def test_a_wait_on_a_stream_with_metrics_in_files(found):
    rows, counted = found["waited"]
    assert rows == [["ann", 1, 2], ["ann", 2, 4], ["bob", 1, 2]]
    assert counted == [[0, 2], [1, 1]]


def test_a_wait_in_foreach_batch_with_names_for_the_keys(found):
    keys = [["ann", "0/key/0/0"], ["ann", "1/key/0/0"], ["bob", "0/key/0/1"]]
    assert found["foreach_batch"][1] == [[user, f"nightly/{key}"] for user, key in keys]


def test_metrics_of_a_wait_need_a_directory(waited):
    assert "ConfigurationError" in waited["metrics_without_a_directory"]
    assert "WaitMetrics(directory=...)" in waited["metrics_without_a_directory"]


@pytest.mark.slow
def test_queries_go_on_after_a_restart(more):
    stream, batches, changes = more["restarted"]
    assert stream == batches == [["ann", 1], ["ann", 2], ["bob", 1], ["bob", 2]]
    ann, bob = CHANGES
    assert changes == [ann, ["ann", "put", 5, 4, 3], bob]


@pytest.mark.slow
def test_ticks(connect_server):
    found = connect_server.results("quiet")["keyed"]["ticks"]
    first, refused, edited, tick, again, without, nothing, rows = found
    assert (first, tick, again, nothing) == ([1, 4], [2, 1], [3, 1], [3, 0])
    assert "forebay ticks CHECKPOINT --operators N" in refused
    assert (edited, without) == ([0], [1, 2])
    assert rows == sorted([user, n] for user in "abcd" for n in (-1, 1))
