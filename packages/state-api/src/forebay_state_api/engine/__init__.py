"""The asynchronous engine: drives a function over keyed rows, one record of a key at a time.

Runtimes come here for `subtask`, `identity`, `arguments`, `record_methods`, `rows`, `pickling` and
`prefetch`; the other modules are the engine's own. `scheduler` decides what runs next and batches
reads, `engine` drives the user's function, `states` and `timers` are the objects that it uses.
"""
