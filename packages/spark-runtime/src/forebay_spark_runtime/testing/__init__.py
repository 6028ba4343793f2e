"""Tests keyed functions without Spark: the real engine and a real backend, but no JVM."""

from __future__ import annotations

from forebay_spark_runtime.testing.harness import FunctionHarness
from forebay_testing import HarnessChain, ManualClock, VirtualClock

__all__ = ["FunctionHarness", "HarnessChain", "ManualClock", "VirtualClock"]
