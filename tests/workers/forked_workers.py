"""pyspark's daemon, having imported what each of its workers would import anew after its fork.

Each worker is at work a second sooner: those of drivers that live for a query, and those started
after a kill. ``tests/test_third_party.py`` runs with pyspark's own daemon.
"""

from __future__ import annotations

import contextlib
import importlib
import runpy

NAMES = (
    "pandas",
    "pyarrow.pandas_compat",
    "pyspark.worker",
    "forebay_spark_runtime.keyed_operator.batch_input",
    "forebay_backend_heap.backend",
    "forebay_backend_lsm.backend",
)

for name in NAMES:
    with contextlib.suppress(ImportError):  # not every environment has all of them
        importlib.import_module(name)

runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
