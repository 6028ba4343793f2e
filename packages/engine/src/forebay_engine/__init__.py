"""The asynchronous engine: runs a function over keyed rows, one record of a key at a time.

`execution` runs records and their steps, `states`, `timers` and `operator_state` have the objects
that functions use, `isolation` lets records fail alone, and `stored` meets what is stored already.
`versions` says which version is opened and who may write one, `compaction` runs compaction jobs,
and `calls` makes calls of external services.

`docs/reference/public-modules.toml` lists the modules that runtimes and the other packages use.
"""
