"""Run a function over the rows of one subtask: records, their steps, waits and calls."""
