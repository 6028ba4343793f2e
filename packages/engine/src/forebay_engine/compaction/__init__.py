"""Run compaction jobs: in this process by default, with one service per process and storage.

Backends submit jobs to a service and do not use this package directly; remote services run a job
with `forebay_engine.compaction.performing.perform`.
"""
