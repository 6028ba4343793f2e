"""The data source ``forebay``: what `pyspark_forebay` imports when it is used.

Spark creates a source when ``load()`` is analysed, and sends it, pickled, to where scans are
planned and to the tasks. So each decision that is made once, such as the version, is a plain field
of the source.
"""

from __future__ import annotations

from forebay_spark_runtime.data_source.opened import opened

__all__ = ["opened"]
