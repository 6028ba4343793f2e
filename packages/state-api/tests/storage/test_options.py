"""``spark.forebay.storage.*``: what a storage is told, and that nothing is ignored."""

from __future__ import annotations

import pytest

from forebay_state_api.errors import ConfigurationError
from forebay_state_api.settings import resolve_settings
from forebay_state_api.storage import open_storage


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://bucket/state", {"region": "eu-west-1", "endpoint": "https://minio:9000"}),
        ("s3a://bucket/state", {"aws_access_key_id": "a", "aws_secret_access_key": "b"}),
        ("gs://bucket/state", {"request-timeout": 5.0}),
        ("abfss://files@account.dfs.core.windows.net/state", {"connect-timeout": 2.0}),
        ("az://container/state", {"azure_storage_account_name": "account"}),
    ],
)
def test_a_cloud_store_is_opened_without_a_request(url: str, options: dict[str, object]) -> None:
    assert open_storage(url, {"retry-budget": 1.0, **options}).url == url


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("gs://bucket/state", {"region": "x"}, r"storage\.region does not apply to gs://"),
        ("https://host/state", {"endpoint": "x"}, r"storage\.endpoint does not apply to https"),
        ("s3://bucket", {"aws_regoin": "x"}, "aws_regoin"),
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
