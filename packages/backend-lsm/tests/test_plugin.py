"""The plugin returns its parts, and its settings can be set."""

from __future__ import annotations

import pytest

from forebay_backend_lsm import LsmBackend
from forebay_backend_lsm.options import LsmOptions
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.plugins import plugins
from forebay_state_api.settings import resolve_settings


def test_backend_and_compactor_are_found():
    assert plugins().backend("lsm") is LsmBackend
    assert plugins().compactor("lsm-1").format == "lsm-1"


def test_settings_reach_the_backend():
    given = {
        "spark.forebay.state.backend": "lsm",
        "spark.forebay.lsm.block-cache-bytes": "1g",
        "spark.forebay.lsm.disk-cache-dir": "/tmp/blocks",
    }
    settings = resolve_settings(given, backends={"lsm": LsmBackend})
    options = LsmOptions.of(settings.backend_options())
    assert (options.block_cache_bytes, options.disk_cache_dir) == (1 << 30, "/tmp/blocks")
    assert (options.memtable_bytes, options.compression) == (64 << 20, "lz4")


@pytest.mark.parametrize(
    ("name", "value"), [("compression", "gzip"), ("max-runs", "2"), ("block-cache-bytes", "-1")]
)
def test_values_that_do_not_fit_are_refused(name, value):
    with pytest.raises(ConfigurationError, match=name):
        resolve_settings({f"spark.forebay.lsm.{name}": value}, backends={"lsm": LsmBackend})


def test_constants_are_for_tests():
    assert LsmOptions.of({"block-bytes": 512}).block_bytes == 512
    with pytest.raises(ConfigurationError, match="no setting"):
        resolve_settings({"spark.forebay.lsm.block-bytes": "512"}, backends={"lsm": LsmBackend})


def test_a_disk_cache_is_on_a_disk():
    with pytest.raises(ConfigurationError, match="disk-cache-dir"):
        LsmOptions.of({"disk-cache-dir": "s3://bucket/cache"})
