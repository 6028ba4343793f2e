"""The examples, in the harness and on Spark."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from forebay_spark_runtime.testing import FunctionHarness

from .loading import load

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name):
    """Import an example, which is a script and not part of a package."""
    return load(EXAMPLES / f"{name}.py")


class Word(NamedTuple):
    word: str
    x: int
    y: int


class Counted(NamedTuple):
    word: str
    count: int


class Value(NamedTuple):
    key: int
    value: int


class Landing(NamedTuple):
    carrier: str
    sequence: int
    arr_delay: int | None


def test_the_duplicate_filter_lets_the_first_row_of_a_key_through():
    module = example("duplicate_filter")
    rows = [Word("hello", 1, 2), Word("hello", 1, 3), Word("flink", 2, 1)]
    with FunctionHarness(module.DuplicateFilter(), key_by="word", parallelism=2) as harness:
        assert sorted(harness.process(rows)) == [("flink", 2, 1), ("hello", 1, 2)]
        assert harness.restart(parallelism=3).process(rows) == []
        harness.clock.advance(timedelta(days=1))
        assert len(harness.process(rows)) == 2


def test_the_counting_window_begins_anew_after_every_two_values():
    module = example("counting_window")
    with FunctionHarness(module.CountWindowAverage(), key_by="key") as harness:
        assert harness.process([Value(1, 3), Value(1, 5), Value(2, 9)]) == [(1, 4.0)]
        assert harness.state(module.WINDOW, 1) == (0, 0)
        assert harness.state(module.WINDOW, 2) == (1, 9)
        assert harness.process([Value(1, 7), Value(1, 4), Value(1, 2)]) == [(1, 5.5)]
        assert harness.state(module.WINDOW, 1) == (1, 2)


def test_the_buffering_sink_keeps_what_waits_over_batches_and_rescales():
    module = example("buffering_sink")
    words = [Counted(f"word{n}", n) for n in range(20)]
    with FunctionHarness(module.BufferingSink(4), key_by="word", parallelism=3) as harness:
        sent = harness.process(words[:9])
        for number, parallelism in enumerate((1, 5, 2)):
            harness.restart(parallelism=parallelism)
            sent += harness.process(words[9 + number * 3 : 12 + number * 3])
        sent += harness.restart(module.BufferingSink(1), parallelism=1).process(words[18:])
    elements = [element for _, line in sent for element in line.split(", ")]
    assert sorted(elements) == sorted(f"word{n} {n}" for n in range(20))
    assert any(line.count(",") == 3 for _, line in sent)


@pytest.mark.parametrize("way", ["AsyncJoin", "MixedJoin"])
def test_both_joins_find_every_pair_whichever_side_comes_first(way):
    module = example("stream_join")
    euros, dollars = module.Order("o1", "EUR"), module.Order("o2", "USD")
    early = module.Payment("o1", "p1", "EUR", 30)
    other = module.Payment("o1", "p2", "USD", 5)
    late = module.Payment("o2", "p3", "USD", 7)
    with FunctionHarness(getattr(module, way)(), key_by="order_id", parallelism=2) as harness:
        assert harness.process([], [early, other]) == []
        assert harness.process([euros], []) == [("o1", "p1", 30)]
        assert harness.process([dollars], [late]) == [("o2", "p3", 7)]
        assert harness.state(module.PAYMENTS, "o1") == {"p1": (early, 1), "p2": (other, 0)}
        assert harness.state(module.PAYMENTS, "o2") == {"p3": (late, 1)}
        assert harness.state(module.ORDER, "o1") == euros


def test_the_total_over_the_flights_is_the_sum():
    module = example("flights_total")
    rows = [
        Landing("UA", 0, 11),
        Landing("UA", 1, None),
        Landing("B6", 2, -18),
        Landing("UA", 3, 20),
    ]
    with FunctionHarness(module.RunningDelay(), key_by="carrier") as harness:
        assert harness.process(rows) == [("UA", 0, 11), ("B6", 2, 0), ("UA", 3, 31)]
        assert harness.state(module.MINUTES, "UA") == 31


class Paid(NamedTuple):
    payment: str
    card: str
    amount: float


@pytest.mark.long
def test_the_fraud_score_asks_for_cards_that_are_not_blocked(monkeypatch):
    pytest.importorskip("aiohttp", reason="the example asks by aiohttp")
    module = example("fraud_score")
    monkeypatch.setattr(module, "TAKES_S", 0.2)
    payments = [Paid(**payment) for payment in module.payments_of(cards=20)]
    with (
        module.ModelServer() as server,
        FunctionHarness(module.Score(server.url), key_by="card", parallelism=2) as harness,
    ):
        rows = harness.process(payments)
        assert harness.state(module.PROFILE, "card 3") == (6, 69 / 6, False)
        assert harness.state(module.PROFILE, "card 10").blocked
    blocked = {payment for payment, _, _, blocked in rows if blocked}
    assert blocked == {"p80", "p90", "p100", "p110"}, "the large payment, and the one after it"
    assert server.asked == len(payments) - 2
    assert server.most > 5


@pytest.fixture(scope="module")
def session():
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("examples")
    return builder.config("spark.ui.enabled", "false").getOrCreate()


def on_spark(name):
    """Import an example so that its functions are pickled by value: workers cannot import it."""
    from pyspark import cloudpickle

    module = example(name)
    cloudpickle.register_pickle_by_value(module)
    return module


@pytest.mark.spark
def test_the_duplicate_filter_on_spark(session):
    rows = on_spark("duplicate_filter").run(session).collect()
    assert sorted(map(tuple, rows)) == [("flink", 2, 1), ("hello", 1, 2)]


@pytest.mark.spark
def test_the_counting_window_on_spark(session):
    assert list(map(tuple, on_spark("counting_window").run(session).collect())) == [
        (1, 4.0),
        (1, 5.5),
    ]


@pytest.mark.spark
def test_the_buffering_sink_on_spark(session):
    rows = on_spark("buffering_sink").run(session).collect()
    assert list(map(tuple, rows)) == [(0, "to 1, be 1, or 1"), (0, "not 1, to 2, be 2")]


@pytest.mark.spark
@pytest.mark.parametrize("way", ["AsyncJoin", "MixedJoin"])
def test_the_joins_on_spark(session, way):
    module = on_spark("stream_join")
    rows = module.run(session, getattr(module, way)()).collect()
    assert sorted(map(tuple, rows)) == [("o1", "p1", 30), ("o2", "p3", 7)]


@pytest.mark.spark
def test_the_total_over_the_flights_on_spark(session, tmp_path):
    from pyarrow import parquet

    module = on_spark("flights_total")
    totals = dict(map(tuple, module.run(session, tmp_path, months=2).collect()))
    flights = [parquet.read_table(file).to_pydict() for file in (tmp_path / "stream").glob("*")]
    wanted: dict[str, int] = {}
    for month in flights:
        for carrier, delay in zip(month["carrier"], month["arr_delay"], strict=True):
            wanted[carrier] = wanted.get(carrier, 0) + max(delay or 0, 0)
    assert totals == wanted


@pytest.mark.spark
def test_the_fraud_score_on_spark(session, tmp_path):
    pytest.importorskip("aiohttp", reason="the example asks by aiohttp")
    module = on_spark("fraud_score")
    (tmp_path / "payments").mkdir()
    lines = map(json.dumps, module.payments_of(cards=20))
    (tmp_path / "payments" / "1.json").write_text("\n".join(lines))
    with module.ModelServer() as server:
        scores = module.run(session, tmp_path, server.url).collect()
    blocked = sorted(row.payment for row in scores if row.blocked)
    assert (len(scores), blocked) == (120, ["p100", "p110", "p80", "p90"])


@pytest.mark.slow
@pytest.mark.spark
def test_offsets_and_state_are_committed_together(session, tmp_path):
    pytest.importorskip("pyspark.sql.datasource", reason="Python data sources came with pyspark 4")
    module = on_spark("stateful_source")
    trouble = tmp_path / "trouble"
    trouble.touch()

    class Troubled(module.InOrder):
        def process_element(self, row, ctx):
            if row.id == 17 and trouble.exists():
                message = "the machine is gone"
                raise OSError(message)
            yield from super().process_element(row, ctx)

    with pytest.raises(Exception, match="the machine is gone"):
        module.run(session, tmp_path, upto=30, function=Troubled())
    half = positions(module, tmp_path)
    trouble.unlink()
    module.run(session, tmp_path, upto=24, function=Troubled())
    module.run(session, tmp_path, upto=40)
    rows = session.read.parquet(str(tmp_path / "output")).collect()
    assert sorted(row.id for row in rows) == list(range(40)), "each ticket once"
    assert half == {1: 5, 2: 10, 3: 15}
    assert max(positions(module, tmp_path).values()) == 40


def positions(module, folder):
    """Return version → the next ticket; check that the source's offsets and the state agree."""
    from forebay_state_api.codecs import codec_for
    from forebay_state_api.plugins import plugins
    from forebay_state_api.storage.opening import open_storage
    from forebay_testing.typed_reads import read_state

    (place,) = (folder / "state").glob("*/gates")
    found = {}
    for commit in sorted((folder / "checkpoint" / "commits").glob("[0-9]*")):
        version = int(commit.name) + 1
        lines = (folder / "checkpoint" / "offsets" / commit.name).read_text().splitlines()
        found[version] = json.loads(lines[-1])["next"]
        last = [
            read_state(
                open_storage(place),
                module.LAST,
                gate,
                uid="gates",
                backend=plugins().backend("heap"),
                options={},
                key_codec=codec_for(str, what="the key"),
                max_parallelism=128,
                now_us=0,
                version=version,
            )
            for gate in module.GATES
        ]
        assert max(last) + 1 == found[version]
    return found
