"""Take over the state of Spark's own operators: `import_tws`, and ``forebay import-tws``."""

from forebay_spark_runtime.importing.tws import ImportedTws, import_tws

__all__ = ["ImportedTws", "import_tws"]
