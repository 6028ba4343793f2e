"""The ordered wait: asynchronous calls for each row of a DataFrame, bounded, timed, retried.

`engine` runs the calls and knows neither Arrow nor Spark; `task` is what runs in a Python worker;
`operators` is what the driver calls.
"""
