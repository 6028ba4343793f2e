"""Errors that nobody expected: named on pages, explained in the log."""

from __future__ import annotations

import logging
import traceback
from typing import Final

_log = logging.getLogger(__name__)


class Faults:
    """Logs an error with its traceback once, however often pages that stay live run into it."""

    def __init__(self) -> None:
        self._logged: Final[set[tuple[str, str, int | None]]] = set()
        """Class and place of each error: no more than there are lines that raise."""

    def named(self, where: str, error: Exception) -> str:
        """Return what a page shows of an error: its class, since its text may hold content."""
        name = type(error).__name__
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = name, last.filename, last.lineno
        if place not in self._logged:
            self._logged.add(place)
            _log.error("%r: %s", where, name, exc_info=error)
        return f"{name}, an error that the console does not expect; its log has the details"
