"""Which tests share a process where `./run test` uses two: the Spark session's, those of a file."""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)  # the names of groups become parts of node ids
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """One process has the shared Spark session; other tests share what their file sets up."""
    if not config.pluginmanager.has_plugin("xdist"):
        return
    for item in items:
        on_session = "spark" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("spark" if on_session else item.location[0]))
