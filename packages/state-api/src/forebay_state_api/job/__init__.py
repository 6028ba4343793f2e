"""The API of jobs: functions, states, descriptors, futures, timers, TTL.

Authors of jobs use these names from the package's root. Nothing in this package depends on the
engine that runs a job.
"""
