"""The asynchronous engine: runs a function over keyed rows, one record of a key at a time.

`execution` runs records and their steps, `states`, `timers` and `operator_state` have the objects
that functions use, `isolation` lets records fail alone, and `stored` meets what is stored already.
`versions` says which version is opened and who may write one, `compaction` runs compaction jobs,
and `calls` makes calls of the world.

Runtimes use `versions`, `calls` and, of the other rooms, `execution.subtask`, `execution.identity`,
`execution.arguments`, `execution.record_methods`, `execution.rows`, `execution.pickling`,
`execution.loop_thread`, `execution.subtask_metrics`, `isolation.checked_rows`,
`isolation.failed_record` and `stored.sibling_caches`.
"""
