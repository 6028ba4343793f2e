"""pyspark's daemon, which makes the imports that each worker would repeat after its fork.

So each worker starts a second sooner, also the workers of short-lived drivers and those that start
after a kill. The daemons of Python data sources, one for each step of planning, have a worker or
two, which import what they need. ``tests/test_third_party.py`` runs with pyspark's own daemon.
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

# Spark adds archives of installed packages; each worker would read their directories again.
sys.path[:] = [path for path in sys.path if not path.endswith((".zip", ".jar"))]
if sys.argv[1:] in ([], ["pyspark.worker"]):
    for name in NAMES:
        with contextlib.suppress(ImportError):  # some environments lack some of them
            importlib.import_module(name)

runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
