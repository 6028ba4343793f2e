"""Readers of the state of a job without Spark."""

from __future__ import annotations

import pytest

from forebay_state_processor.reading import open_state


@pytest.fixture
def read(tmp_path):
    """Open the job's state; every snapshot is closed at the end."""
    opened = []

    def open_(**given):
        opened.append(open_state(str(tmp_path), query="query", uid="operator", **given))
        return opened[-1]

    yield open_
    for one in opened:
        one.close()
