"""The asynchronous engine: runs a function over keyed rows, one record of a key at a time.

Runtimes use `subtask`, `identity`, `arguments`, `record_methods`, `rows`, `checked_rows`,
`failed_record`, `pickling`, `prefetch`, `loop_thread` and `measures`; the other modules are
internal. `scheduler` decides what runs next and batches reads, `awaits` has what records await
besides state, `engine` runs the user's function, `states` and `timers` contain the objects that the
function uses.
"""
