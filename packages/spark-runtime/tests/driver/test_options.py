"""The options of `keyed`: agreement of two connected inputs, and secrets in messages."""

from __future__ import annotations

from types import SimpleNamespace

import attrs
import pytest

from forebay_engine.versions import RestoreFrom
from forebay_spark_runtime import keyed
from forebay_spark_runtime.driver.options import (
    KeyedOptions,
    agreeing,
    checked_batch,
    checked_directory,
    checked_end,
    checked_order,
    operator_options,
)
from forebay_spark_runtime.driver.session import MicroBatch
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.settings import PREFIX, resolve_settings

ACCOUNT, SECRET = "storage.account_name", "storage.aws_secret_access_key"


def options(**given):
    configured = {PREFIX + name: value for name, value in given.items()}
    return KeyedOptions(
        uid="u",
        parallelism=1,
        max_parallelism=2,
        batch=MicroBatch(),
        state_dir=None,
        order_by=(),
        new_state=False,
        settings=resolve_settings(configured),
    )


def test_connected_inputs_of_one_configuration_agree():
    agreeing(options(**{SECRET: "hush"}), options(**{SECRET: "hush"}))


@pytest.mark.parametrize("second", [{ACCOUNT: "b"}, {}, {ACCOUNT: "a", "page-size": "7"}])
def test_connected_inputs_that_disagree(second):
    pair = options(**{ACCOUNT: "a"}), options(**second)
    for one, other in (pair, pair[::-1]):
        with pytest.raises(ConfigurationError, match="connected inputs are one operator"):
            agreeing(one, other)


def test_no_message_shows_a_secret():
    first, second = options(**{SECRET: "hush"}), options(**{SECRET: "hushed"})
    with pytest.raises(ConfigurationError, match=SECRET) as caught:
        agreeing(first, second)
    assert "hush" not in str(caught.value) + repr(first)


@pytest.mark.parametrize("url", ["memory://x", "MEMORY://x"])
def test_state_in_memory_is_refused_in_any_case(url):
    settings = resolve_settings({}, overrides={"state.dir": url})
    stream = SimpleNamespace(isStreaming=True)
    with pytest.raises(ConfigurationError, match="would be a process's own"):
        checked_directory(stream, settings, MicroBatch(), "u")


@pytest.mark.parametrize("name", ["", "x" * 201, "ü" * 40, "\ud800"])
def test_names_that_no_path_can_hold_are_refused_on_the_driver(name):
    with pytest.raises(ConfigurationError, match="query="):
        checked_batch(SimpleNamespace(isStreaming=True), name, None, "u")


@pytest.mark.parametrize(
    ("batch", "is_streaming", "words"),
    [
        (MicroBatch(), True, "a stream has no end"),
        (MicroBatch(query="q", batch_id=3, run_id="r"), False, "in foreachBatch"),
    ],
    ids=["stream", "foreachBatch"],
)
def test_the_end_of_a_micro_batch_of_a_stream_is_not_its_end(batch, is_streaming, words):
    stream = attrs.evolve(options(), batch=batch, state_dir="/state")
    df = SimpleNamespace(isStreaming=is_streaming)
    with pytest.raises(ConfigurationError, match=words):
        checked_end(True, df, stream)
    assert not checked_end(None, df, stream)
    assert not checked_end(False, df, stream)


@pytest.mark.parametrize(("directory", "fires"), [(None, True), ("/state", False)])
def test_a_bounded_dataframe_ends_with_its_state(directory, fires):
    bounded = attrs.evolve(options(), state_dir=directory)
    df = SimpleNamespace(isStreaming=False)
    assert checked_end(None, df, bounded) is fires
    assert checked_end(True, df, bounded)
    assert not checked_end(False, df, bounded)
    with pytest.raises(ConfigurationError, match="fire_at_end is True or False, not 'yes'"):
        checked_end("yes", df, bounded)


class Bounded:
    """A bounded DataFrame, with the attributes that its options use."""

    isStreaming = False
    schema = SimpleNamespace(names=["user"])

    def __init__(self):
        context = SimpleNamespace(
            getLocalProperty=lambda _: None,
            defaultParallelism=2,
            _conf=SimpleNamespace(get=lambda _, default: default),
        )
        self.sparkSession = SimpleNamespace(conf=Settings(), sparkContext=context)


class Settings:
    """The configuration of a session in a JVM, with one setting."""

    def __init__(self):
        names = SimpleNamespace(mkString=lambda _: f"{PREFIX}state.dir")
        self._jconf = SimpleNamespace(getAll=lambda: SimpleNamespace(keySet=lambda: names))

    def get(self, name):
        return {f"{PREFIX}state.dir": "/state"}[name]


def bounded(**given):
    told = {"state.dir": given.pop("state_dir", None)}
    arguments = {"new_state": False, "query": None, "batch_id": None, "parallelism": None}
    return operator_options(
        Bounded(),
        uid="u",
        max_parallelism=2,
        order_by=None,
        **{**arguments, **given},
        overrides=told,
    )


def test_state_that_is_dropped():
    with pytest.raises(ConfigurationError, match="restore_from= needs query="):
        bounded(restore=RestoreFrom("q"))
    assert bounded(state_dir="/of/a/stream").state_dir is None


def test_flags_are_parsed_as_settings_are():
    assert bounded(new_state="false").new_state is False
    assert bounded(new_state="true").new_state is True
    with pytest.raises(ConfigurationError, match="new_state"):
        bounded(new_state="perhaps")


def test_arguments_about_state_that_is_kept(tmp_path):
    kept = bounded(query="q", state_dir=tmp_path, new_state=True)
    assert (kept.state_dir, kept.new_state) == (str(tmp_path), True)


def test_connected_inputs_begin_with_the_same():
    first = attrs.evolve(options(), restore=RestoreFrom("q"))
    with pytest.raises(ConfigurationError, match="restore is"):
        agreeing(first, options())


@pytest.mark.parametrize("given", [5, [5], ["user", None], {"user": 1}, {"user"}], ids=repr)
def test_what_order_by_refuses(given):
    with pytest.raises(ConfigurationError, match="operator 'u': order_by= is the name of a col"):
        checked_order(Bounded(), given, "u")


@pytest.mark.parametrize("given", ["x", 5, None, [("a", 1)], {"k": 1}], ids=repr)
def test_an_object_that_is_not_a_dataframe(given):
    with pytest.raises(ConfigurationError, match=r"keyed\(\) takes a DataFrame of Spark first"):
        keyed(given, "k", uid="u")
