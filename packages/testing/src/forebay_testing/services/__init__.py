"""The conformance kit for compaction services; pytest rewrites its assertions, as in any test."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(f"{__name__}.rows")

from forebay_testing.services.rows import CompactionServiceTests, KitCompactor

__all__ = ["CompactionServiceTests", "KitCompactor"]
