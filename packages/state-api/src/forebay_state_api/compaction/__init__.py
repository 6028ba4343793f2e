"""Runs compaction jobs: in this process by default, one service per process and storage.

Backends submit jobs to a service and never come here; remote services run a job with
`forebay_state_api.compaction.performing.perform`.
"""
