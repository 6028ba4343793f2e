"""The stored version that a harness inspects: its own newest one, or the one it will begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from forebay_engine.versions.choosing.forks import find_source
from forebay_engine.versions.choosing.reader import VersionReader, open_version
from forebay_engine.versions.format.epochs import list_epochs
from forebay_engine.versions.format.key_types import key_type_of
from forebay_state_api.codecs import ValueCodec, describe_type
from forebay_state_api.errors import ConfigurationError

if TYPE_CHECKING:
    from forebay_engine.versions import OperatorStorage, RestoreFrom
    from forebay_engine.versions.format.keyed_by import KeyedBy
    from forebay_state_api.contract.object_storage import ObjectStorage


@attrs.frozen(kw_only=True)
class Stored:
    """A version of an operator's state."""

    storage: ObjectStorage
    """The storage of the operator's folder."""
    uid: str
    version: int | None
    """The version's number, by default of the newest complete version; 0 is the empty version."""
    run_key: str | None = None
    """The run that made it, if it is known."""

    @classmethod
    def source_of(cls, storage: OperatorStorage, asked: RestoreFrom, uid: str) -> Stored:
        """Return the version that an operator with the folder ``storage`` begins with."""
        found = find_source(storage, asked, batch_id=0, uid=uid, epochs=list_epochs(storage))
        return cls(
            storage=storage.sibling(found.folder),
            uid=found.uid,
            version=found.version or None,
            run_key=found.run_key or None,
        )

    def where(self) -> dict[str, Any]:
        """The arguments that readers share."""
        return {"uid": self.uid, "version": self.version, "run_key": self.run_key}

    def opened(self) -> VersionReader:
        """Open the version, pinned."""
        return open_version(self.storage, **self.where())

    def check_keys(self, declared: ValueCodec, keyed_by: KeyedBy) -> None:
        """Refuse keys of other columns or of another type than the stored keys."""
        if self.version == 0:
            return
        with self.opened() as reader:
            keyed_by.check(reader.manifests, self.uid)
            stored = key_type_of(reader.manifests)
        if stored is not None and stored.description != declared.description:
            raise ConfigurationError(
                f"the state of operator {self.uid!r} in {self.storage.url} was stored with "
                f"keys of type {describe_type(stored.description)}, and the harness's are of type "
                f"{describe_type(declared.description)}; pass key_type="
            )
