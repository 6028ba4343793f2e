"""Bring state along on Spark.

DataFrames by `import_state` and `replace_state`, Spark's own operators by `import_tws`.
``forebay import-tws`` is a command, too.
"""

from forebay_spark_runtime.importing.dataframes import import_state
from forebay_spark_runtime.importing.replacing import replace_state
from forebay_spark_runtime.importing.tws import ImportedTws, import_tws

__all__ = ["ImportedTws", "import_state", "import_tws", "replace_state"]
