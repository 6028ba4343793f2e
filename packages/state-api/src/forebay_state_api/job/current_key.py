"""The placeholder for the current key where no record runs."""

from __future__ import annotations

from typing import Final, NoReturn

from forebay_state_api.errors import StateAccessError


class _NoKey:
    """The key while no record runs: every look-up with it raises an error."""

    def __hash__(self) -> NoReturn:
        raise StateAccessError(
            "state was accessed with no current key: states are used per record, in the record "
            "method or in callbacks of its futures, not in open() or close() or after the batch"
        )

    def __eq__(self, other: object) -> bool:
        return self is other


NO_KEY: Final = _NoKey()
