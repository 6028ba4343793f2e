"""Delete small objects that are no longer needed, or leave them where deleting is not permitted."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from forebay_state_api.errors import StorageError

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage

_log = logging.getLogger(__name__)


def delete_or_leave(storage: ObjectStorage, names: Sequence[str], harm: str) -> None:
    """Delete objects; if that fails they stay, and a warning is logged.

    ``harm`` describes the consequence, for people.
    """
    try:
        storage.delete(names)
    except StorageError as error:
        _log.warning("%s; %s", one_line(error), harm)


def one_line(error: BaseException) -> str:
    """Return the text of an error on one line."""
    return " ".join(str(error).split())
