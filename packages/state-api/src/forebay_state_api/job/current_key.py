"""The key that is current where there is none."""

from __future__ import annotations

from typing import Final, NoReturn

from forebay_state_api.errors import StateAccessError


class _NoKey:
    """Stands for the key where there is none: looking anything up under it is an error."""

    def __hash__(self) -> NoReturn:
        raise StateAccessError(
            "state was accessed with no current key: states are used per record, in the record "
            "method or in callbacks of its futures, not in open() or close() or after the batch"
        )

    def __eq__(self, other: object) -> bool:
        return self is other


NO_KEY: Final = _NoKey()
