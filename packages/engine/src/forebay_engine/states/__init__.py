"""The state objects that functions use, on top of a backend's tables.

`kinds` has a row for each kind of state; `base` has the parts that all kinds share.
"""
