"""A stored job: what it keeps, and how its rows are read."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import attrs

START = datetime(2026, 1, 1, tzinfo=UTC)


@attrs.frozen
class Account:
    owner: str
    cents: int


def lines(text):
    return [json.loads(line) for line in text.splitlines()]
