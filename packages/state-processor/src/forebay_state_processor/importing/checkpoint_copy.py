"""Copy the checkpoint of a stopped query without the state of Spark's operators.

Spark refuses to continue a checkpoint whose stateful operator is missing from the plan. A copy
without the folder ``state`` continues at the next batch, with the source positions, the watermark
and the query's id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from forebay_engine.versions.cleaning.deletions import delete_or_leave
from forebay_state_api.errors import ConfigurationError, StorageError

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage

_STATE: Final = "state/"
_METADATA: Final = "metadata"
"""The query's id; Spark does not continue the query of a checkpoint without it."""
_LOGS: Final = ("offsets", "commits")


class CheckpointCopy:
    """A copy that a query cannot start from before `finish`."""

    def __init__(self, source: ObjectStorage, target: ObjectStorage) -> None:
        """Note the batches in ``source``.

        Raises `ConfigurationError` if ``target`` is not empty, or is in ``source``.
        """
        if f"{target.url}/".startswith(f"{source.url}/"):
            raise ConfigurationError(
                f"{target.url} is in the checkpoint {source.url}: name a location outside of it"
            )
        if target.list():
            raise ConfigurationError(
                f"{target.url} is not empty: name a new location for the copy of the checkpoint"
            )
        self._source = source
        self._target = target
        self._batches = self._planned()
        self._made: list[str] = []

    def begin(self) -> None:
        """Copy all files but the state and the query's id."""
        for info in self._source.list():
            if not info.name.startswith(_STATE) and info.name != _METADATA:
                self._copy(info.name)

    def check_unchanged(self) -> None:
        """Raise `ConfigurationError` if the query has run since this object was made."""
        if self._planned() != self._batches:
            raise ConfigurationError(
                f"the query of {self._source.url} ran while its state was imported: stop it, and "
                "import again"
            )

    def finish(self) -> None:
        """Copy the query's id: from now on a query can start from the copy.

        The `StorageError` of a failure says how to do it by hand.
        """
        try:
            self._copy(_METADATA)
        except StorageError as error:
            raise StorageError(
                f"{error}; everything else is done: copy {_METADATA} from {self._source.url} to "
                f"{self._target.url}, and start the query"
            ) from error

    def undo(self) -> None:
        """Delete what was copied."""
        delete_or_leave(self._target, self._made, "they are a copy that no query can start from")

    def _copy(self, name: str) -> None:
        self._made.append(name)
        self._target.put(name, self._source.get(name))

    def _planned(self) -> frozenset[str]:
        """Return the names of the batches that were planned and committed."""
        return frozenset(info.name for log in _LOGS for info in self._source.list(log))
