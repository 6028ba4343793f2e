"""A job on its way to the workers, in a wrapping that can be opened without Forebay.

What is pickled by reference fails where it is unpickled, before any code of ours, with a bare
``ModuleNotFoundError``: on a cluster, or behind Spark Connect, if Forebay is on the client alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pyspark import cloudpickle


def shipped(job: Callable[[Iterator[Any]], Iterator[Any]], what: str) -> Any:
    """What ``mapInArrow`` is given for ``job``: says what is missing where it cannot be unpacked.

    ``what`` names the operator. The function that is returned is pickled by its code.
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
                "version: on every worker, and with Spark Connect on the server; PYSPARK_PYTHON "
                "names another Python",
                name=error.name,
            ) from None
        return unpacked(batches)

    return run
