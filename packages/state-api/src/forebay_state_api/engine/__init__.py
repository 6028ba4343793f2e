"""The asynchronous engine: runs a function over keyed rows, one record of a key at a time.

Runtimes use `subtask`, `identity`, `arguments`, `record_methods`, `rows`, `failed_record`,
`pickling` and `prefetch`; the other modules are internal. `scheduler` decides what runs next and
batches reads, `engine` runs the user's function, `states` and `timers` contain the objects that the
function uses.
"""
