"""pyspark 3.5 has no Python data sources: Spark says that there is none of this name."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

import pyspark_forebay

pytestmark = pytest.mark.spark


@pytest.mark.skipif(
    hasattr(pyspark_forebay, "DefaultSource"), reason="this pyspark has Python data sources"
)
def test_spark_names_the_source_that_it_has_not(stage):
    with pytest.raises((PySparkException, Py4JJavaError), match=r"DATA_SOURCE_NOT_FOUND.* forebay"):
        stage.spark.read.format("forebay").load(str(stage.state))
