"""Services and threads that live as long as a Python worker process, and its tasks' identity.

The tasks of both operators share them: a service that one task starts serves the next one, too.
"""
