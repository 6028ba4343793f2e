"""The ordered wait: asynchronous calls for each row of a DataFrame, bounded, timed, retried.

The driver calls `operators`, Python workers run `task`, and `engine` makes the calls without
depending on Arrow or Spark.
"""
