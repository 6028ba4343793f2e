"""Find the operator's folder and the version that a reader shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import attrs

from forebay_engine.configuring import resolve_with_plugins
from forebay_engine.versions.choosing.finality import ShownVersion, is_final, newest_shown, shown_at
from forebay_engine.versions.choosing.opening import absent
from forebay_engine.versions.choosing.reader import VersionReader, open_version, version_gone_error
from forebay_engine.versions.choosing.savepoints import read_savepoint
from forebay_engine.versions.choosing.timeline import newest_complete
from forebay_engine.versions.format.directory_contents import nothing_stored_error
from forebay_engine.versions.format.epochs import RunVersion, list_epochs
from forebay_engine.versions.format.folder import OperatorStorage
from forebay_engine.versions.format.layout import operator_folder
from forebay_engine.versions.format.markers import list_version
from forebay_state_api.contract.file_names import LAST_VERSION
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import ConfigurationError, VersionGoneError
from forebay_state_api.settings import Settings, is_of_plugin, resolve_settings
from forebay_state_api.storage import open_storage

if TYPE_CHECKING:
    from forebay_state_api.contract.backend import StateBackend
    from forebay_state_api.keys import KeyGroupRange


T = TypeVar("T")


def reader_settings(conf: Mapping[str, str]) -> Settings:
    """Resolve settings; plugins are imported only for settings that may be theirs."""
    of_plugins = any(is_of_plugin(key) for key in conf)
    if not of_plugins:
        return resolve_settings(conf)
    return resolve_with_plugins(conf)


_RUN: Final = re.compile("[0-9a-f]{16}")
_NUMBER: Final = re.compile(r"\d{1,15}")


def version_named(text: str) -> int | str:
    """Return the version that text means: a number, or else the name of a savepoint."""
    return int(text) if _NUMBER.fullmatch(text) else text


def _check_number(version: object) -> None:
    if type(version) is not int or not 0 <= version <= LAST_VERSION:
        raise ConfigurationError(
            f"a version is a number from 0 to {LAST_VERSION:,}, or the name of a savepoint, not "
            f"{version!r:.100}"
        )


@attrs.frozen(kw_only=True)
class OperatorSource:
    """The source that a reader opens: one operator's folder, and the settings to read it with."""

    storage: OperatorStorage
    query: str
    uid: str
    settings: Settings = attrs.field(repr=False)

    @classmethod
    def of(
        cls, state_dir: str | ObjectStorage, *, query: str, uid: str, conf: Mapping[str, str]
    ) -> Self:
        """Resolve ``conf``, the settings ``spark.forebay.*``, and open the state directory."""
        settings = reader_settings(conf)
        return cls.with_settings(state_dir, query=query, uid=uid, settings=settings)

    @classmethod
    def with_settings(
        cls, state_dir: str | ObjectStorage, *, query: str, uid: str, settings: Settings
    ) -> Self:
        """Open the state directory with resolved settings."""
        root = (
            state_dir
            if isinstance(state_dir, ObjectStorage)
            else open_storage(state_dir, settings.storage_options())
        )
        storage = OperatorStorage(root, operator_folder(query, uid))
        return cls(storage=storage, query=query, uid=uid, settings=settings)

    def options_of(self, backend: type[StateBackend]) -> Mapping[str, Any]:
        """Return a backend's options: those that were set, and defaults."""
        defaults = resolve_settings({}, backends={backend.name: backend})
        return defaults.options_of(backend.name) | self.settings.options_of(backend.name)

    def choose(
        self,
        version: int | str | None = None,
        *,
        run: str | None = None,
        provisional: bool = False,
    ) -> ShownVersion:
        """Return the version to show; the parameters are as for `open_state`.

        Raises a `ConfigurationError` that lists what is stored.
        """
        if isinstance(version, str):
            saved = read_savepoint(self.storage, version, uid=self.uid)
            at = RunVersion(version=saved.version, run_key=saved.run_key)
            return ShownVersion(at, is_final(self.storage, at))
        if version is not None:
            _check_number(version)
        if run is not None:
            if version is None:
                raise ConfigurationError("run= names a version together with its number: pass both")
            if not _RUN.fullmatch(str(run)):
                raise ConfigurationError(f"run= is the key of a run, 16 hex digits, not {run!r}")
            at = RunVersion(version=version, run_key=run)
            return ShownVersion(at, is_final(self.storage, at))
        shown = (
            newest_shown(self.storage, provisional=provisional)
            if version is None
            else shown_at(self.storage, version, provisional=provisional)
        )
        if shown is None:
            raise self._not_shown_error(version, provisional=provisional)
        return shown

    def opened(
        self,
        open_: Callable[[ShownVersion], T],
        version: int | str | None = None,
        *,
        run: str | None = None,
        provisional: bool = False,
    ) -> T:
        """Open the version to show; the other parameters are as for `choose`.

        If the janitor deletes the newest one before it is pinned, a newer one is opened.
        """
        while True:
            chosen = self.choose(version, run=run, provisional=provisional)
            try:
                return open_(chosen)
            except VersionGoneError:
                if version is not None:
                    raise

    def open(
        self, at: RunVersion, lease: timedelta, key_groups: KeyGroupRange | None = None
    ) -> VersionReader:
        """Pin a version, or its part in some key groups, and read its manifests.

        Raises `VersionGoneError` if it is not stored any more, `CorruptStateError` for damage.
        """
        return open_version(
            self.storage,
            uid=self.uid,
            version=at.version,
            run_key=at.run_key,
            range=key_groups,
            lease=lease,
        )

    def version_gone_error(self, at: RunVersion, how_to_go_on: str) -> VersionGoneError:
        """Return the error for a version that is not stored any more."""
        return version_gone_error(self.storage, at, self.uid, how_to_go_on)

    def _not_shown_error(self, version: int | None, *, provisional: bool) -> ConfigurationError:
        newest = newest_complete(self.storage, list_epochs(self.storage))
        where = f"operator {self.uid!r} in {self.storage.url}"
        if newest is None:
            return nothing_stored_error(self.storage, self.uid)
        if version == 0:
            return ConfigurationError(
                f"version 0 of {where} is the empty one before the first micro-batch, of which "
                f"nothing is stored: the newest complete one is {newest.version}"
            )
        if version is not None and version < newest.version:
            missing = absent(list_version(self.storage, version))
            return ConfigurationError(
                f"{where} has no version {version} any more, which its timeline passed: {missing}"
                f"the janitor deleted it. The newest complete one is {newest.version}; what is "
                "stored is listed by `forebay state ls`"
            )
        asked = "no final version" if version is None else f"no final version {version}"
        if provisional:
            asked = f"no version {version}"
        return ConfigurationError(
            f"{where} has {asked}; the newest complete one is {newest.version}. A version is final "
            "when the query has continued from it; provisional=True (--provisional) shows it before"
        )
