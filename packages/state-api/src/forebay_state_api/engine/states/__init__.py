"""The state objects that functions use, over the tables of a backend.

`kinds` has a row for each kind of state; `base` has what all kinds share.
"""
