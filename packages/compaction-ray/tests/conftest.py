"""Makes the toys importable, and gives what most tests need."""

from __future__ import annotations

import importlib.util
import sys
import uuid
from pathlib import Path

import pytest

from forebay_state_api.storage import open_storage

if "compaction_ray_toys" not in sys.modules:
    spec = importlib.util.spec_from_file_location(
        "compaction_ray_toys", Path(__file__).with_name("toys.py")
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["compaction_ray_toys"] = module
    spec.loader.exec_module(module)


@pytest.fixture
def state_dir(tmp_path):
    return str(tmp_path / f"state-{uuid.uuid4().hex[:6]}")


@pytest.fixture
def storage(state_dir):
    """The state directory, with the inputs of toy jobs 1 to 9."""
    here = open_storage(state_dir, {})
    for number in range(1, 10):
        here.put(f"query/op/data/in{number}", bytes([number]) * 100)
    return here
