"""The console: a job's state and its history in the browser, from storage alone.

It reads what jobs store and asks nothing of them, so it can neither fail nor slow one.
"""
