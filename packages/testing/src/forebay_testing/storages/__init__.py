"""The conformance kit for object storages; pytest rewrites its assertions, as in any test."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(f"{__name__}.rows")

from forebay_testing.storages.rows import StorageTests

__all__ = ["StorageTests"]
