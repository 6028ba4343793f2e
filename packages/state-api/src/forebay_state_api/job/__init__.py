"""What jobs import: functions, states, descriptors, futures, timers, TTL.

Authors of jobs come here through the names at the package's root. Nothing in this room knows how
the engine runs a job.
"""
