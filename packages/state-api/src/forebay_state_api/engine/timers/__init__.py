"""Timers: when they are due, how they are stored, and what fires them.

The engine comes here; what users see is `forebay_state_api.job.timers`.
"""
