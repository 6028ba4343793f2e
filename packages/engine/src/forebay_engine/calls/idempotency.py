"""The names under which a service recognises a call that is made again."""

from __future__ import annotations


def idempotency_key(query: str, batch_id: int, operator: str, *record: object) -> str:
    """Return the key of a record: its query, micro-batch, operator and place or content."""
    return "/".join(map(str, (query, batch_id, operator, *record)))
