"""Unexpected errors: pages name their class, and the log has the traceback."""

from __future__ import annotations

import logging
import traceback
from typing import Final

from forebay_state_api.errors import ForebayError

_log = logging.getLogger(__name__)


class Faults:
    """Logs an error with its traceback once, however often refreshing pages meet it."""

    def __init__(self) -> None:
        self._logged: Final[set[tuple[str, str, str, int | None]]] = set()
        """Operator or query, class and place of each error: for each of them, no more than there
        are lines that raise."""

    def problem(self, folder: str, error: Exception) -> str:
        """Return the text that a page shows for an error of a stored operator or query."""
        if isinstance(error, ForebayError):
            return str(error)
        return self.named(folder, error, folder=folder)

    def named(self, where: str, error: Exception, *, folder: str = "") -> str:
        """Return the text that a page shows for an error: its class, without the message.

        :param where: the page or the operator that runs into it, for the log.
        :param folder: of the stored operator or query that it is about, if it is about one: each
            one's error is logged. Never a path that a viewer chose: these have no end.
        """
        name = type(error).__name__
        # A server takes the traceback from an error that it raised, and viewers share errors.
        frames = traceback.extract_tb(error.__traceback__)
        line = (frames[-1].filename, frames[-1].lineno) if frames else ("", None)
        place = folder, name, *line
        if place not in self._logged:
            self._logged.add(place)
            _log.error("%r: %s", where, name, exc_info=error)
        return f"{name}, an error that the console does not expect; its log has the details"
