"""Bring state along: write a version from rows, outside a job.

`part` writes one subtask's key groups through its backend; `versions.imported` publishes all parts
as one version.
"""
