"""Wraps a job for the workers so that it can be unpickled without Forebay.

If Forebay is installed on the client only, on a cluster or with Spark Connect, unpickling a job
that is pickled by reference fails with a bare ``ModuleNotFoundError`` before any code of ours runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pyspark import cloudpickle


def shipped(job: Callable[[Iterator[Any]], Iterator[Any]], what: str) -> Any:
    """Return the function to pass to ``mapInArrow`` for ``job``.

    If a package of ours is missing in the worker, it raises an error that names the package. It is
    pickled by its code, not by reference. ``what`` names the operator in the message.
    """
    packed = cloudpickle.dumps(job)

    def run(batches: Any) -> Any:
        import pickle
        import sys

        try:
            unpacked = pickle.loads(packed)  # noqa: S301 - it comes from the job's own driver
        except ModuleNotFoundError as error:
            missing = str(error.name).partition(".")[0]
            if not missing.startswith("forebay_"):
                raise
            raise ModuleNotFoundError(
                f"{what}: {missing} is not installed for the Python that Spark's workers run, "
                f"{sys.executable}. Install {missing.replace('_', '-')} there, in the driver's "
                "version: on every worker, and with Spark Connect on the server; or set "
                "PYSPARK_PYTHON to another Python",
                name=error.name,
            ) from None
        return unpacked(batches)

    return run
