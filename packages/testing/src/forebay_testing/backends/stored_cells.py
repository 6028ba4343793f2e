"""The pieces in which a backend stores an operator's cells: files, or rows of a server."""

from __future__ import annotations

from forebay_state_api.contract.object_storage import ObjectStorage


class StoredCells:
    """Cells in files; a backend that keeps them elsewhere overrides the fixture `stored_cells`.

    A *piece* is whatever can be damaged, or be missing, alone: a file, or a row. `storage` is the
    operator's folder.
    """

    in_files = True
    """Whether `CommittedState.bytes_total` is the size of the files."""

    def pieces(self, storage: ObjectStorage) -> dict[str, bytes]:
        """Return all pieces of the operator, by names of any kind."""
        return {info.name: storage.get(info.name) for info in storage.list("data")}

    def put(self, storage: ObjectStorage, name: str, data: bytes) -> None:
        """Replace the bytes of a piece, as damage does."""
        storage.put(name, data)

    def delete(self, storage: ObjectStorage, name: str) -> None:
        """Remove a piece from storage."""
        storage.delete([name])
