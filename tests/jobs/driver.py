"""A separate driver, which runs jobs of this folder one after the other in one session.

A line of its input is a JSON object: the name of the ``job`` and the arguments of its ``run``. With
``local[2,8]`` Spark runs a task again that has failed, up to seven times.
"""

from __future__ import annotations

import importlib

from answering import answer
from pyspark import cloudpickle
from pyspark.sql import SparkSession


def run(asked):
    module = importlib.import_module(asked.pop("job"))
    cloudpickle.register_pickle_by_value(module)  # workers cannot import it
    SparkSession.builder.master("local[2,8]").getOrCreate()
    module.run(**asked)


if __name__ == "__main__":
    answer(run)
