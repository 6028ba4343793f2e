"""Timers: their due times, their storage, and their firing.

Only the engine uses this package; users see `forebay_state_api.job.timers`.
"""
