"""pyspark's daemon after the imports that each of its workers would make again after its fork.

Each worker is at work a second sooner: those of drivers that live for a query, and those started
after a kill. ``tests/test_third_party.py`` runs with pyspark's own daemon.
"""

from __future__ import annotations

import contextlib
import importlib
import runpy
import sys

NAMES = (
    "asyncio",
    "pandas",
    "pyarrow.pandas_compat",
    "pyspark.worker",
    "forebay_spark_runtime.keyed_operator.task",
    "forebay_spark_runtime.waiting.task",
    "forebay_backend_heap.backend",
    "forebay_backend_lsm.backend",
    "forebay_compaction_ray.client.service",
)

# Spark adds archives of what is installed anyway; each worker would read their directories again.
sys.path[:] = [path for path in sys.path if not path.endswith((".zip", ".jar"))]
for name in NAMES:
    with contextlib.suppress(ImportError):  # not every environment has all of them
        importlib.import_module(name)

runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
