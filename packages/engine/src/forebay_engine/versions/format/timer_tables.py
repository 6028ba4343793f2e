"""The tables in which timers are stored, and the numbers of their time domains."""

from __future__ import annotations

from typing import Final

from forebay_state_api.job.timers import TimeDomain

TIMERS: Final = "__timers__"
DIRECTORY: Final = "__timer_leaves__"
BY_KEY: Final = "__timers_of_keys__"
TIMER_TABLES: Final = frozenset({TIMERS, DIRECTORY, BY_KEY})
"""Names of the tables, which no state of a function may have."""
DOMAINS: Final = (TimeDomain.EVENT_TIME, TimeDomain.PROCESSING_TIME)
"""The domains in firing order; the number of a domain is its position here."""
