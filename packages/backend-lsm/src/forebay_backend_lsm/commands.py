"""The commands ``forebay lsm inspect`` and ``forebay lsm verify``, which read sorted files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

import attrs
import click

from forebay_backend_lsm.files.checking import damage_of
from forebay_backend_lsm.files.layout import MAGIC
from forebay_backend_lsm.files.reading import SortedFile
from forebay_backend_lsm.reports import FileReport, OperatorReport, Report
from forebay_cli.options.conf import conf_options
from forebay_cli.options.state_directory import state_directory
from forebay_cli.output.progress import shown_progress
from forebay_cli.output.report import json_option, print_json
from forebay_engine.versions.format.folder import FOREIGN
from forebay_engine.versions.format.manifest import Manifest
from forebay_state_api import KeyGroupRange
from forebay_state_api.contract.file_names import version_of
from forebay_state_api.contract.files import StateFile
from forebay_state_api.contract.object_storage import ObjectInfo, ObjectNotFoundError, ObjectStorage
from forebay_state_api.errors import ConfigurationError, ForebayError
from forebay_state_api.progress import Progress
from forebay_state_api.settings import Settings
from forebay_state_api.storage import open_storage

_ALL_GROUPS: Final = KeyGroupRange(0, 0xFFFF)


@click.group("lsm")
def lsm() -> None:
    """Inspect and verify the sorted files of the lsm backend."""


@lsm.command("inspect")
@click.argument("place", metavar="FILE|DIR")
@json_option
@conf_options
def inspect(place: str, settings: Settings, *, as_json: bool) -> None:
    """Print a file's footer, or the newest versions below a directory with their runs and sizes.

    DIR is an operator's directory, or one above it.
    """
    options = settings.storage_options()
    folder = None if Path(place).is_file() else _Folder.of(open_storage(place, options))
    if folder is not None and folder.objects:
        report = _of_folder(folder)
    else:
        report = Report(files=[_of_file(*_sorted_file(place, options))])
    print_json(report.plain()) if as_json else report.show()


@lsm.command("verify")
@click.argument("place", metavar="DIR")
@json_option
@conf_options
@click.pass_context
def verify(context: click.Context, place: str, settings: Settings, *, as_json: bool) -> None:
    """Read every file below DIR; report what is damaged, with exit status 1 if anything is."""
    folder = _Folder.of(state_directory(place, settings))
    with shown_progress() as progress:
        checked, damaged = _verified(folder, progress)
    faults = [fault for one in damaged for fault in one]
    if as_json:
        print_json({"files": checked, "damaged_objects": len(damaged), "damage": faults})
    else:
        for fault in faults:
            click.echo(f"DAMAGED  {fault}")
        click.echo(f"read {checked} file(s), {len(damaged)} damaged object(s)")
    if damaged:
        context.exit(1)


def _verified(folder: _Folder, progress: Progress) -> tuple[int, list[list[str]]]:
    """Return the number of files, and the faults of each damaged object."""
    progress.stage("reading manifests")
    found = (one for manifests in folder.manifests.values() for one in manifests)
    damaged = [[fault] for fault in found if isinstance(fault, str)]
    files = folder.files()
    progress.stage("reading files", len(files))
    for file in files:
        if wrong := damage_of(folder.storage, file):
            damaged.append(wrong)
        progress.advance()
    return len(files), damaged


@attrs.frozen(slots=False)
class _Folder:
    """A directory and all objects below it."""

    storage: ObjectStorage
    objects: Sequence[ObjectInfo]

    @classmethod
    def of(cls, storage: ObjectStorage) -> Self:
        """List all objects that are below ``storage`` now."""
        return cls(storage, storage.list())

    @cached_property
    def manifests(self) -> dict[tuple[str, int], list[Manifest | str]]:
        """Return manifests, or their faults, by operator's folder and version, newest first."""
        found: dict[tuple[str, int], list[Manifest | str]] = {}
        for info in self.objects:
            versions, part, pair, name = ["", "", "", *info.name.split("/")][-4:]
            version = version_of(part)
            if versions != "versions" or version is None or not name.startswith("manifest-"):
                continue
            path = info.name[: -len(f"versions/{part}/{pair}/{name}")]
            found.setdefault((path, version), []).append(self._manifest(info.name))
        return found

    def files(self) -> list[StateFile]:
        """Return each sorted file that is stored or named by a manifest, once, by its full name."""
        files: dict[str, StateFile] = {}
        for (path, _), manifests in self.manifests.items():
            for manifest in manifests:
                if isinstance(manifest, Manifest) and manifest.backend == "lsm":
                    for file in manifest.files:
                        if (name := _from_root(path, file.name)) is not None:
                            files[name] = attrs.evolve(file, name=name)
        for info in self.objects:
            if info.name not in files and _is_sorted_file(self.storage, info):
                files[info.name] = StateFile(name=info.name, size=info.size, range=_ALL_GROUPS)
        return [files[name] for name in sorted(files)]

    def _manifest(self, name: str) -> Manifest | str:
        try:
            return Manifest.unsealed(self.storage.get(name), name)
        except ForebayError as fault:
            return str(fault)


def _from_root(path: str, name: str) -> str | None:
    """Resolve a name that an operator in the folder ``path`` uses, against the given directory.

    Returns ``None`` for a file of another operator that is not below that directory.
    """
    operators = path.rstrip("/").split("/")
    if not name.startswith(FOREIGN):
        return path + name
    if len(operators) < 2:  # noqa: PLR2004 - query and uid
        return None
    above = "".join(f"{part}/" for part in operators[:-2])
    return above + name[len(FOREIGN) :]


def _file(place: str, options: Mapping[str, Any]) -> tuple[ObjectStorage, StateFile]:
    parent, _, name = place.rstrip("/").rpartition("/")
    storage = open_storage(parent or ".", options)
    for info in storage.list():
        if info.name == name:
            return storage, StateFile(name=name, size=info.size, range=_ALL_GROUPS)
    raise ObjectNotFoundError(f"there is no file and no directory {place!r}")


def _sorted_file(place: str, options: Mapping[str, Any]) -> tuple[ObjectStorage, StateFile]:
    storage, file = _file(place, options)
    if file.size and not _is_sorted_file(storage, file):
        raise ConfigurationError(f"{place} is not a file of the lsm backend")
    return storage, file


def _is_sorted_file(storage: ObjectStorage, file: ObjectInfo | StateFile) -> bool:
    """Return whether it begins like a sorted file."""
    length = min(file.size, len(MAGIC))
    return storage.get_ranges(file.name, [(0, length)]) == [MAGIC]


def _of_file(storage: ObjectStorage, file: StateFile) -> FileReport:
    opened = SortedFile.open(storage, file)
    for name in opened.tables:
        opened.tables[name]  # raises for an index that no writer makes
    return FileReport(file=file, tail=opened.tail)


def _of_folder(folder: _Folder) -> Report:
    newest: dict[str, int] = {}
    manifests = folder.manifests
    for path, version in manifests:
        newest[path] = max(version, newest.get(path, 0))
    if not newest:
        return Report(files=[_of_file(folder.storage, file) for file in folder.files()])
    operators = [
        OperatorReport.of(path or ".", version, manifests[path, version])
        for path, version in sorted(newest.items())
    ]
    return Report(operators=operators)
