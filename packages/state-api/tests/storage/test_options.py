"""``spark.forebay.storage.*``: options reach the storage, and none is ignored."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import obstore
import pytest

from forebay_engine.versions import OperatorStorage
from forebay_state_api.contract.backend import Opening
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.plugins import plugins
from forebay_state_api.settings import resolve_settings
from forebay_state_api.storage import clouds
from forebay_state_api.storage.clouds import CLIENT_OPTIONS, CloudStorage
from forebay_state_api.storage.opening import open_storage
from forebay_testing import CountingStorage

from .stand_ins import S3, stand_in


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://bucket/state", {"region": "eu-west-1", "endpoint": "https://minio:9000"}),
        ("s3a://bucket/state", {"aws_access_key_id": "a", "aws_secret_access_key": "b"}),
        ("gs://bucket/state", {"request-timeout": 5.0}),
        ("abfss://files@account.dfs.core.windows.net/state", {"connect_timeout": "2s"}),
        ("az://container/state", {"azure_storage_account_name": "account"}),
    ],
)
def test_a_cloud_store_is_opened_without_a_request(url: str, options: dict[str, object]) -> None:
    assert open_storage(url, {"retry-budget": 1.0, **options}).url == url


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("gs://bucket/state", {"region": "x"}, r"opened with spark\.forebay\.storage\.region: "),
        ("https://host/state", {"endpoint": "x"}, r"with spark\.forebay\.storage\.endpoint: "),
        ("s3://bucket", {"aws_regoin": "x"}, r"with spark\.forebay\.storage\.aws_regoin: "),
        ("/tmp/state", {"endpoint": "x", "retry-budget": 1.0}, "no options.*endpoint$"),
        ("/tmp/state", {"request-timeout": 1.0}, "no options.*request-timeout"),
        ("memory://x", {"region": "x"}, "no options.*region"),
    ],
)
def test_an_option_that_means_nothing_there(
    url: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        open_storage(url, options)


def test_a_backend_finds_the_options_of_its_storage_and_nothing_shows_them() -> None:
    secrets = {"aws_access_key_id": "a", "aws_secret_access_key": "hush"}
    client = {"region": "eu-west-1", **secrets}
    storage = open_storage("s3://bucket/state", {**client, "retry-budget": 1.0})
    own = OperatorStorage(storage, "query/operator")
    for one in (storage, storage.child("a"), own, own.child("data"), CountingStorage(own)):
        assert one.options == client
    opening = Opening.outside_job(own, "operator", KeyGroupRange(0, 7), {})
    assert opening.storage.url == "s3://bucket/state/query/operator"
    assert "hush" not in repr(opening) + repr(storage)
    assert open_storage("memory://x").options == {}


def test_settings_become_options() -> None:
    given = {
        "spark.forebay.storage.retry-budget": "2min",
        "spark.forebay.storage.request-timeout": "500ms",
        "spark.forebay.storage.endpoint": "http://127.0.0.1:9000",
        "spark.forebay.storage.aws_access_key_id": "a",
    }
    assert resolve_settings(given).storage_options() == {
        "retry-budget": 120.0,
        "request-timeout": 0.5,
        "endpoint": "http://127.0.0.1:9000",
        "aws_access_key_id": "a",
    }
    with pytest.raises(ConfigurationError, match="retry-budget"):
        resolve_settings({"spark.forebay.storage.retry-budget": "long"})


def test_a_directory_takes_the_settings_that_all_have() -> None:
    assert open_storage("/tmp/state", resolve_settings({}).storage_options()).list() == []


CLOUDS = {
    "s3://bucket/state": "aws_",
    "gs://bucket/state": "google_",
    "abfss://files@account.dfs.core.windows.net/state": "azure_",
    "https://host/state": "",
}
CLIENT_VALUES = {
    **dict.fromkeys(CLIENT_OPTIONS, "true"),
    **dict.fromkeys((name for name in CLIENT_OPTIONS if "timeout" in name), "5s"),
    "default_headers": {"x-team": "streams"},
    "http2_keep_alive_interval": "5s",
    "http2_max_frame_size": "16384",
    "pool_max_idle_per_host": "4",
    "proxy_url": "http://proxy:3128",
    "root_certificate": None,
}


STUBS = next(Path(obstore.__file__).parent.rglob("_client.pyi")).read_text()
INSTALLED = set(re.findall(r"^    (\w+): ", STUBS, re.MULTILINE))
"""The options of the installed obstore's client."""


def test_all_options_of_obstores_client_are_known() -> None:
    assert INSTALLED <= CLIENT_OPTIONS


@pytest.mark.parametrize("url", CLOUDS)
def test_options_of_the_client_are_passed_on(url: str) -> None:
    opened = plugins().storage(url.partition(":")[0])
    assert issubclass(opened, CloudStorage)
    values = {name: CLIENT_VALUES[name] for name in INSTALLED - {"root_certificate"}}
    for name, value in values.items():
        for written in {name, f"{CLOUDS[url]}{name}", name.upper()}:
            assert opened.split_options({written: value}) == ({}, {name: value})
    assert open_storage(url, {name.upper(): value for name, value in values.items()}).url == url


@pytest.mark.parametrize("url", CLOUDS)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timeout", "soon"),
        ("allow_http", "perhaps"),
        ("pool_max_idle_per_host", "many"),
        ("proxy_url", "::"),
        ("user_agent", "a\nb"),
        ("root_certificate", "not PEM"),
        ("default_headers", "x-team: streams"),
        ("nonsense", "1"),
        ("http2_max_frame_size", 16384),
    ],
)
def test_a_value_that_does_not_fit_is_an_error_with_the_keys_name(
    url: str, name: str, value: object
) -> None:
    words = rf"cannot be opened with spark\.forebay\.storage\.{name}: "
    with pytest.raises(ConfigurationError, match=words) as caught:
        open_storage(url, {"user_agent": "me", name: value})
    assert "reached" not in str(caught.value), "nothing was asked of the store"
    with pytest.raises(ConfigurationError, match=rf"storage\.{name}, spark\.f.*storage\.zzz: "):
        open_storage(url, {"zzz": "1", name: value})


def test_a_panic_of_obstore_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        pass

    def from_url(*_: object, config: Any, **__: object) -> object:
        if config and "odd" in config:
            raise PanicException("expected something else")
        return None

    monkeypatch.setattr(clouds, "from_url", from_url)
    with pytest.raises(ConfigurationError, match=r"storage\.odd: expected something else"):
        open_storage("s3://bucket", {"odd": "1", "even": "2"})


@pytest.mark.parametrize("own", ["timeout", "aws_timeout"])
def test_one_option_under_two_names(own: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"storage\.{own} is given twice"):
        open_storage("s3://bucket", {"request-timeout": 5.0, own: "6s"})


def test_requests_go_through_a_proxy() -> None:
    with stand_in(S3) as server:
        proxied = {
            **server.options,
            "endpoint": "http://store.invalid",
            "proxy_url": f"http://127.0.0.1:{server.port}",
        }
        open_storage("s3://bucket/state", proxied).put("a", b"1")
        assert [*server.objects] == ["state/a"]
