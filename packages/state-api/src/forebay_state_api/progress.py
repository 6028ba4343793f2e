"""Progress of long work, reported by library functions and shown by commands."""

from __future__ import annotations

from typing import Final

__all__ = ["SILENT", "Progress"]


class Progress:
    """Receives the progress of some work; this base class ignores it.

    A function that takes long has the parameter ``progress: Progress = SILENT`` and calls its
    methods from one thread. Work has stages, one after the other, and a stage has steps.
    """

    def stage(self, doing: str, total: int | None = None) -> None:
        """Begin a stage, such as ``"reading manifests"``, of ``total`` steps if that is known."""

    def advance(self, steps: int = 1) -> None:
        """Note that steps of the current stage were done."""


SILENT: Final = Progress()
"""Shows nothing."""
