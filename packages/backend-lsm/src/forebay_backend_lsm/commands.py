"""``forebay lsm inspect`` and ``forebay lsm verify``: looks into sorted files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import click
from rich.console import Console
from rich.table import Table

from forebay_backend_lsm.files.checking import damage_of
from forebay_backend_lsm.files.layout import MAGIC
from forebay_backend_lsm.files.reading import SortedFile
from forebay_backend_lsm.layers import layers_of
from forebay_state_api._conf_options import conf_options, settings_of
from forebay_state_api.backend import StateFile
from forebay_state_api.errors import ForebayError
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.storage import ObjectInfo, ObjectNotFoundError, ObjectStorage, open_storage
from forebay_state_api.versions.folder import FOREIGN
from forebay_state_api.versions.layout import version_of
from forebay_state_api.versions.manifest import Manifest

_ALL_GROUPS: Final = KeyGroupRange(0, 0xFFFF)
_NAMES: Final = ("put", "delete", "append", "clear")


@click.group("lsm")
def lsm() -> None:
    """Look into the sorted files of the lsm backend."""


@lsm.command("inspect")
@click.argument("place", metavar="FILE|DIR")
@conf_options
def inspect(place: str, conf: tuple[str, ...], properties_file: Path | None) -> None:
    """Print the footer of a file; or of a directory the newest versions, their runs and sizes.

    DIR is an operator's directory, or one above it.
    """
    options = settings_of(conf, properties_file).storage_options()
    folder = None if Path(place).is_file() else _folder(place, options)
    if folder is not None and folder.objects:
        _show_folder(folder)
    else:
        _show_file(*_file(place, options))


@lsm.command("verify")
@click.argument("place", metavar="DIR")
@conf_options
@click.pass_context
def verify(
    context: click.Context, place: str, conf: tuple[str, ...], properties_file: Path | None
) -> None:
    """Read every file below DIR; report what is damaged, with exit status 1 if anything is."""
    folder = _folder(place, settings_of(conf, properties_file).storage_options())
    checked, bad = 0, 0
    for manifests in folder.manifests().values():
        for found in manifests:
            if isinstance(found, str):
                bad += 1
                click.echo(f"DAMAGED  {found}")
    for file in folder.files():
        faults = damage_of(folder.storage, file)
        checked, bad = checked + 1, bad + bool(faults)
        for fault in faults:
            click.echo(f"DAMAGED  {fault}")
    click.echo(f"read {checked} file(s), {bad} damaged object(s)")
    if bad:
        context.exit(1)


@attrs.frozen
class _Folder:
    """A directory and all objects below it."""

    storage: ObjectStorage
    objects: Sequence[ObjectInfo]

    def manifests(self) -> dict[tuple[str, int], list[Manifest | str]]:
        """By operator's folder and version, newest first; of an unreadable one what is wrong."""
        found: dict[tuple[str, int], list[Manifest | str]] = {}
        for info in self.objects:
            *operator, versions, part, name = ["", "", *info.name.split("/")][-4:]
            version = version_of(part)
            if versions != "versions" or version is None or not name.startswith("manifest-"):
                continue
            path = info.name[: -len(f"versions/{part}/{name}")]
            del operator
            found.setdefault((path, version), []).append(self._manifest(info.name))
        return found

    def files(self) -> list[StateFile]:
        """Every sorted file that a manifest names or that is there, once, with its whole name."""
        files: dict[str, StateFile] = {}
        for (path, _), manifests in self.manifests().items():
            for manifest in manifests:
                if isinstance(manifest, Manifest) and manifest.backend == "lsm":
                    for file in manifest.files:
                        if (name := _from_root(path, file.name)) is not None:
                            files[name] = attrs.evolve(file, name=name)
        for info in self.objects:
            if info.name not in files and self._is_sorted_file(info):
                files[info.name] = StateFile(name=info.name, size=info.size, range=_ALL_GROUPS)
        return [files[name] for name in sorted(files)]

    def _manifest(self, name: str) -> Manifest | str:
        try:
            return Manifest.unsealed(self.storage.get(name), name)
        except ForebayError as fault:
            return str(fault)

    def _is_sorted_file(self, info: ObjectInfo) -> bool:
        if info.size < len(MAGIC):
            return False
        return self.storage.get_ranges(info.name, [(0, len(MAGIC))]) == [MAGIC]


def _from_root(path: str, name: str) -> str | None:
    """What an operator in the folder ``path`` calls ``name``, as seen from the directory given.

    ``None`` for a file of another operator that does not lie below that directory.
    """
    operators = path.rstrip("/").split("/")
    if not name.startswith(FOREIGN):
        return path + name
    if len(operators) < 2:  # noqa: PLR2004 - query and uid
        return None
    above = "".join(f"{part}/" for part in operators[:-2])
    return above + name[len(FOREIGN) :]


def _folder(place: str, options: Mapping[str, Any]) -> _Folder:
    storage = open_storage(place, options)
    return _Folder(storage, storage.list())


def _file(place: str, options: Mapping[str, Any]) -> tuple[ObjectStorage, StateFile]:
    parent, _, name = place.rstrip("/").rpartition("/")
    storage = open_storage(parent or ".", options)
    for info in storage.list():
        if info.name == name:
            return storage, StateFile(name=name, size=info.size, range=_ALL_GROUPS)
    raise ObjectNotFoundError(f"there is no file and no directory {place!r}")


def _show_file(storage: ObjectStorage, file: StateFile) -> None:
    opened = SortedFile.open(storage, file)
    tail = opened.tail
    click.echo(f"{file.name}: {file.size:,} bytes, format 1, key groups {tail.range}")
    click.echo(
        f"blocks {tail.body_bytes:,} bytes (xxh3 {tail.body_checksum:016x}), "
        f"filters and index {file.size - tail.body_bytes:,} bytes"
    )
    columns = ["state", "kind", "cells", *_NAMES, "blocks", "stored", "raw", "filter", "times"]
    table = Table(*columns, box=None, pad_edge=False)
    for section in tail.sections:
        blocks = section.blocks
        table.add_row(
            section.name,
            str(section.description["kind"]),
            *(f"{n:,}" for n in (section.cells, *section.counts, len(blocks.sizes))),
            *(f"{n:,}" for n in (blocks.sizes.sum(), blocks.raw_sizes.sum())),
            f"{section.filter.words.nbytes:,}",
            "-" if section.times is None else "{}..{}".format(*section.times),
        )
    Console().print(table)
    for section in tail.sections:
        first, last = section.addresses
        click.echo(f"{section.name}: addresses {first:016x}..{last:016x}, {section.compression}")


def _show_folder(folder: _Folder) -> None:
    newest: dict[str, int] = {}
    manifests = folder.manifests()
    for path, version in manifests:
        newest[path] = max(version, newest.get(path, 0))
    for path, version in sorted(newest.items()):
        click.echo(f"{path or '.'} version {version}")
        for manifest in _one_each(manifests[path, version]):
            _show_manifest(manifest)
    if not newest:
        for file in folder.files():
            _show_file(folder.storage, file)


def _one_each(found: Sequence[Manifest | str]) -> Iterator[Manifest]:
    """Of each subtask the manifest of the highest attempt; what cannot be read is told."""
    best: dict[int, Manifest] = {}
    for one in found:
        if isinstance(one, str):
            click.echo(f"DAMAGED  {one}")
        elif (known := best.get(one.made.subtask)) is None or (
            (known.made.epoch, known.made.attempt_id) < (one.made.epoch, one.made.attempt_id)
        ):
            best[one.made.subtask] = one
    yield from (best[subtask] for subtask in sorted(best))


def _show_manifest(manifest: Manifest) -> None:
    layers = layers_of(manifest.files)
    table = Table("run", "key groups", "bytes", "cells", "deletes", "file", box=None)
    for depth, layer in enumerate(layers):
        for file in layer.files:
            numbers = (file.size, file.meta.get("entries", 0), file.meta.get("deletes", 0))
            table.add_row(str(depth), str(file.range), *(f"{n:,}" for n in numbers), file.name)
    size = sum(file.size for file in manifest.files)
    space = f"{size / layers[0].size:.2f}" if layers else "-"
    click.echo(
        f"subtask {manifest.made.subtask}, key groups {manifest.made.range}, backend "
        f"{manifest.backend}: {len(manifest.files)} files, {size:,} bytes; read amplification "
        f"{len(layers)} runs, space amplification {space} (all files ÷ the oldest run)"
    )
    Console().print(table)


COMMANDS: Final[list[click.Command]] = [lsm]
"""Sub-commands of ``forebay``."""
