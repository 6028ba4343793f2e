"""The keyed operator: `keyed(...)`, its plan on the driver, its tasks in the workers.

Authors of jobs come here by `forebay_spark_runtime.keyed`; `task` is what Spark runs.
"""
