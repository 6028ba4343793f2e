"""Settings: precedence, refusals and their messages, display."""

from __future__ import annotations

import datetime
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import attrs
import pytest

from forebay_state_api.errors import ConfigurationError
from forebay_state_api.settings import (
    BYTES,
    CORE,
    DURATION,
    LOCATION,
    PREFIX,
    Setting,
    Settings,
    one_of,
    option,
    options_from,
    resolve_settings,
    settings_of,
)

HEAP = SimpleNamespace(
    name="heap",
    options={
        "snapshot-ratio": Setting("snapshot-ratio", float, 2.0, "When to write a snapshot."),
        "codec": Setting("codec", one_of("zstd", "none"), "zstd", "Compression."),
    },
)
BACKENDS = {"heap": HEAP}


def resolve(given: dict[str, str] | None = None, **overrides: Any) -> Settings:
    configured = {PREFIX + key: value for key, value in (given or {}).items()}
    return resolve_settings(configured, overrides=overrides, backends=BACKENDS)


def test_defaults() -> None:
    settings = resolve()
    assert settings["state.backend"] == "heap"
    assert settings["state.dir"] is None
    assert settings["state.cache-bytes"] == 2**30
    assert settings["drain-timeout"] == 60.0
    assert settings["janitor.min-age"] == 3600.0
    assert settings["read-ahead"] is True
    assert set(settings) == {s.name for s in CORE} | {"heap.snapshot-ratio", "heap.codec"}


def test_arguments_go_over_configuration_over_defaults() -> None:
    given = {"batch-size": "10", "page-size": "11"}
    overrides = {"batch-size": 20, "in-flight-limit": None}
    settings = resolve(given, **overrides)
    assert (settings["batch-size"], settings["page-size"]) == (20, 11)
    assert settings["in-flight-limit"] == 6000
    sources = {row.key: row.source for row in settings.explain()}
    assert sources[PREFIX + "batch-size"] == "argument"
    assert sources[PREFIX + "page-size"] == "configuration"
    assert sources[PREFIX + "in-flight-limit"] == "default"


@attrs.frozen(kw_only=True)
class Options:
    max_runs: int = option(int, 4, "How many.", minimum=1)
    grace_s: float = option(DURATION, "2min", "How long.")
    factor: float = 1.5
    """A constant."""


def test_options_are_settings_that_are_declared_once() -> None:
    declared = settings_of(Options)
    assert declared["max-runs"] == Setting("max-runs", int, 4, "How many.", minimum=1)
    assert (declared.keys(), declared["grace"].default) == ({"max-runs", "grace"}, "2min")
    assert Options() == Options(max_runs=4, grace_s=120.0, factor=1.5)
    found = options_from(Options, {"grace": 5.0, "another's": 1})
    assert found == Options(grace_s=5.0)
    assert options_from(Options, {"factor": 3.0}).factor == 3.0


def test_other_configuration_is_ignored() -> None:
    assert resolve_settings({"spark.master": "local[2]"})["state.backend"] == "heap"


def test_an_unknown_key_names_the_nearest_and_all() -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve({"batchsize": "10"})
    text = str(caught.value)
    assert "there is no setting spark.forebay.batchsize" in text
    assert "did you mean spark.forebay.batch-size?" in text
    assert "janitor.min-age" in text
    assert "heap.codec" in text


def test_an_unknown_argument_is_refused_too() -> None:
    with pytest.raises(ConfigurationError, match=r"no setting spark\.forebay\.heap\.codek"):
        resolve(**{"heap.codek": "zstd"})


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("batch-size", "ten", "a whole number, at least 1"),
        ("batch-size", "0", "a whole number, at least 1"),
        ("batch-size", "1.5", "a whole number"),
        ("batch-size", True, "a whole number"),
        ("read-ahead", "maybe", "true or false"),
        ("read-ahead", 1, "true or false"),
        ("drain-timeout", "60 parsecs", "a duration such as 500ms, 30s"),
        ("drain-timeout", -1, "a duration"),
        ("drain-timeout", "36501d", "a duration such as 500ms, 30s, 5min, 1h or seconds, up to 36"),
        ("janitor.min-age", datetime.timedelta.max, "a duration"),
        ("janitor.min-age", "9" * 400, "a duration"),
        ("janitor.min-age", float("nan"), "a duration"),
        ("retention", "1000001", "a whole number, at least 1, at most 1,000,000"),
        ("state.cache-bytes", "1.5g", "a size such as 64k, 256m"),
        ("state.cache-bytes", "", "a size"),
        ("state.dir", " ", "a path or a URL"),
        ("state.dir", 3, "a path or a URL"),
        ("heap.snapshot-ratio", "nan", "a number"),
        ("heap.codec", "lz4", "one of zstd, none"),
    ],
)
def test_a_bad_value_names_key_value_and_form(key: str, value: Any, expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve(**{key: value})
    text = str(caught.value)
    assert text.startswith(f"{PREFIX}{key} = {value!r}: expected {expected}")


@pytest.mark.parametrize(
    ("setting_type", "given", "value"),
    [
        (BYTES, "256m", 256 * 2**20),
        (BYTES, "1G", 2**30),
        (BYTES, "64 kb", 2**16),
        (BYTES, "2TiB", 2**41),
        (BYTES, "17", 17),
        (BYTES, 17, 17),
        (DURATION, "30s", 30.0),
        (DURATION, "5min", 300.0),
        (DURATION, "5m", 300.0),
        (DURATION, "500ms", 0.5),
        (DURATION, "1.5h", 5400.0),
        (DURATION, "2 d", 172800.0),
        (DURATION, "7", 7.0),
        (DURATION, datetime.timedelta(minutes=1), 60.0),
        (LOCATION, " s3://bucket/state ", "s3://bucket/state"),
        (LOCATION, Path("/state"), "/state"),
        (bool, "TRUE", True),
        (bool, False, False),
        (float, "0.5", 0.5),
        (float, 2, 2.0),
        (int, "7", 7),
        (str, " heap ", "heap"),
        (one_of("a", "b"), "b", "b"),
    ],
)
def test_forms(setting_type: Any, given: object, value: object) -> None:
    found = Setting("x", setting_type, None, "").value_of(given)
    assert found == value
    assert type(found) is type(value)


def test_options_of_the_backend_lose_its_name() -> None:
    settings = resolve({"heap.snapshot-ratio": "3"})
    assert settings.backend_options() == {"snapshot-ratio": 3.0, "codec": "zstd"}
    assert settings.options_of("lsm") == {}


class Away:
    """A service whose settings are not called after it."""

    name = "away"
    options: ClassVar = {"address": Setting("address", str, None, "Where.")}
    options_prefix = "compaction.remote"
    required_option = "address"


def test_a_service_may_call_its_settings_otherwise() -> None:
    given = {
        "spark.forebay.compaction.service": "away",
        "spark.forebay.compaction.remote.address": "there:1",
    }
    settings = resolve_settings(given, backends={"away": Away})
    assert settings.service_options(Away) == {"address": "there:1"}
    with pytest.raises(ConfigurationError, match=r"away\.address"):
        resolve_settings({"spark.forebay.away.address": "x"}, backends={"away": Away})


def test_a_service_and_the_setting_it_cannot_work_without_go_together() -> None:
    with pytest.raises(ConfigurationError, match=r"needs spark.forebay.compaction.remote.address"):
        resolve_settings({"spark.forebay.compaction.service": "away"}, backends={"away": Away})
    unused = {"spark.forebay.compaction.remote.address": "there:1"}
    with pytest.raises(ConfigurationError, match=r"compaction\.service is 'local'"):
        resolve_settings(unused, backends={"away": Away})


def test_a_backend_may_have_the_name_of_a_service() -> None:
    given = {
        "spark.forebay.compaction.service": "away",
        "spark.forebay.compaction.remote.address": "there:1",
    }
    other = SimpleNamespace(options={"size": Setting("size", int, 1, "How large.")})
    settings = resolve_settings(given, backends={"away": other}, services={"away": Away})
    assert settings.service_options(Away) == {"address": "there:1"}
    assert settings.options_of("away") == {"size": 1}


@pytest.mark.parametrize("chosen", ["heap", "acme"])
def test_a_setting_that_two_declare_is_that_of_the_chosen_one(chosen: str) -> None:
    codec = {"codec": Setting("codec", int, 7, "Another setting of the same name.")}
    acme = SimpleNamespace(name="acme", options=codec, options_prefix="heap")
    for backends in ({**BACKENDS, "acme": acme}, {"acme": acme, **BACKENDS}):
        configured = resolve_settings({"spark.forebay.state.backend": chosen}, backends=backends)
        passed = resolve_settings({}, overrides={"state.backend": chosen}, backends=backends)
        expected = {"heap": "zstd", "acme": 7}[chosen]
        assert configured["heap.codec"] == passed["heap.codec"] == expected


def test_storage_options_are_passed_on() -> None:
    settings = resolve({"storage.aws_region": "eu-west-1"}, **{"storage.aws_token": "t0p"})
    assert settings.storage_options() == {
        "aws_region": "eu-west-1",
        "aws_token": "t0p",
        "retry-budget": 30.0,
    }
    shown = {row.key: row.value for row in settings.explain()}
    assert shown[PREFIX + "storage.aws_region"] == "eu-west-1"
    assert shown[PREFIX + "storage.aws_token"] == "***"


@pytest.mark.parametrize(
    ("key", "given", "shown"),
    [
        ("storage.proxy_url", "http://me:hush@proxy:3128", "http://***@proxy:3128"),
        ("storage.proxy_url", "http://proxy:3128", "http://proxy:3128"),
        ("state.dir", "az://container/state?sig=hush", "az://container/state?***"),
    ],
)
def test_a_password_or_signature_in_a_url_does_not_show(key: str, given: str, shown: str) -> None:
    settings = resolve({key: given})
    assert {row.key: row.value for row in settings.explain()}[PREFIX + key] == shown


@pytest.mark.parametrize(
    ("key", "given", "shown"),
    [
        ("state.cache-bytes", "1024m", "1g"),
        ("state.cache-bytes", "1000", "1000"),
        ("state.cache-bytes", "0", "0"),
        ("drain-timeout", "2min", "120s"),
        ("drain-timeout", "250ms", "0.25s"),
        ("read-ahead", "False", "false"),
        ("batch-size", "7", "7"),
    ],
)
def test_values_are_shown_as_they_can_be_written(key: str, given: str, shown: str) -> None:
    rows = {row.key: row.value for row in resolve({key: given}).explain()}
    assert rows[PREFIX + key] == shown
    assert resolve({key: shown})[key] == resolve({key: given})[key]


def test_a_required_setting_says_how_to_give_it() -> None:
    with pytest.raises(ConfigurationError, match=r"forebay\.state\.dir is not set.*state_dir="):
        resolve().required("state.dir", argument="state_dir")
    given = resolve({"state.dir": "/state"})
    assert given.required("state.dir", argument="state_dir") == "/state"


def test_settings_travel_and_do_not_change() -> None:
    settings = resolve({"batch-size": "10"})
    copy = pickle.loads(pickle.dumps(settings))
    assert copy == settings
    assert copy["batch-size"] == 10
    with pytest.raises(AttributeError):
        settings.x = 1


def test_every_setting_is_documented_and_has_a_fitting_default() -> None:
    for setting in CORE:
        setting.default_value()
        assert setting.doc.endswith(".")


def test_an_unknown_name_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        resolve()["nothing"]


def test_no_repr_shows_a_secret() -> None:
    settings = resolve({"storage.aws_secret_access_key": "hush"})
    assert settings.storage_options()["aws_secret_access_key"] == "hush"
    assert "hush" not in repr(settings)


def test_a_secret_is_masked_in_tables_and_in_errors() -> None:
    options = {"port": Setting("port", int, None, "Where.", secret=True)}
    backends = {"acme": SimpleNamespace(options=options)}
    settings = resolve_settings({"spark.forebay.acme.port": "1234"}, backends=backends)
    assert settings["acme.port"] == 1234
    (row,) = [row for row in settings.explain() if row.key.endswith("acme.port")]
    assert row.value == "***"
    with pytest.raises(ConfigurationError, match=r"acme\.port = \*\*\*: expected") as error:
        resolve_settings({"spark.forebay.acme.port": "hush"}, backends=backends)
    assert "hush" not in str(error.value)
