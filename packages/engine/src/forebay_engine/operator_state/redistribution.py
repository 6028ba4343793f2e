"""Redistribute operator state when the parallelism changes; pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def even_share(elements: Sequence[T], subtask: int, parallelism: int) -> Sequence[T]:
    """Return the contiguous part of ``elements`` that one subtask gets.

    Each gets ``n // parallelism`` of ``n`` elements, the first ``n % parallelism`` one more.
    """
    base, extra = divmod(len(elements), parallelism)
    start = subtask * base + min(subtask, extra)
    return elements[start : start + base + (subtask < extra)]


def broadcast_source(subtask: int, old_parallelism: int) -> int:
    """Return the old subtask whose copy a new subtask gets."""
    return subtask % old_parallelism
