"""Which tests share a process when `./run test` uses several: those with Spark, or of a file."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """All tests with Spark run on one session; the others share what their file sets up."""
    if not config.pluginmanager.has_plugin("xdist"):
        return
    for item in items:
        of_spark = item.get_closest_marker("spark") is not None
        item.add_marker(pytest.mark.xdist_group("spark" if of_spark else item.location[0]))
