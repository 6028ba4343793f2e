"""Reports of ``forebay lsm inspect``, for people or as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Self

import attrs
import click

from forebay_backend_lsm.files.layout import Tail
from forebay_backend_lsm.layers import Layer, layers_of
from forebay_cli.output.report import print_table
from forebay_engine.versions.format.manifest import Manifest
from forebay_state_api.contract.files import StateFile

_KINDS: Final = ("put", "delete", "append", "clear")
_BACKEND: Final = "lsm"


@attrs.frozen
class FileReport:
    """The footer of one sorted file."""

    file: StateFile
    tail: Tail

    def plain(self) -> dict[str, Any]:
        """Return the report as dicts, lists, strings and numbers."""
        tail = self.tail
        return {
            "file": self.file.name,
            "bytes": self.file.size,
            "key_groups": [tail.range.start, tail.range.end],
            "blocks_bytes": tail.body_bytes,
            "checksum": f"{tail.body_checksum:016x}",
            "states": [_plain_section(section.parsed()) for section in tail.sections],
        }

    def show(self) -> None:
        """Print the report."""
        file, tail = self.file, self.tail
        click.echo(f"{file.name}: {file.size:,} bytes, format 1, key groups {tail.range}")
        click.echo(
            f"blocks {tail.body_bytes:,} bytes (xxh3 {tail.body_checksum:016x}), "
            f"filters and index {file.size - tail.body_bytes:,} bytes"
        )
        found = [_plain_section(section.parsed()) for section in tail.sections]
        columns = ["state", "kind", "cells", *_KINDS, "blocks", "stored", "raw", "filter"]
        rows = [[*(one[name] for name in columns), _span(one["times"])] for one in found]
        print_table([*columns, "times"], rows)
        for one in found:
            first, last = one["addresses"]
            click.echo(f"{one['state']}: addresses {first}..{last}, {one['compression']}")


def _span(times: Sequence[int] | None) -> str:
    return "" if times is None else "{}..{}".format(*times)


def _plain_section(section: Any) -> dict[str, Any]:
    blocks = section.blocks
    return {
        "state": section.name,
        "kind": str(section.description["kind"]),
        "cells": int(section.cells),
        **dict(zip(_KINDS, map(int, section.counts), strict=True)),
        "blocks": len(blocks.sizes),
        "stored": int(blocks.sizes.sum()),
        "raw": int(blocks.raw_sizes.sum()),
        "filter": int(section.filter.words.nbytes),
        "times": None if section.times is None else [int(time) for time in section.times],
        "addresses": [f"{address:016x}" for address in section.addresses],
        "compression": str(section.compression),
    }


@attrs.frozen(kw_only=True)
class OperatorReport:
    """The newest version of one operator."""

    path: str
    version: int
    damage: Sequence[str]
    """Faults of manifests that cannot be read."""
    manifests: Sequence[Manifest]
    """Each subtask's manifest of its highest attempt."""

    @classmethod
    def of(cls, path: str, version: int, found: Sequence[Manifest | str]) -> Self:
        """``found`` holds each manifest of the version, or its fault."""
        best: dict[int, Manifest] = {}
        for one in found:
            if isinstance(one, str):
                continue
            known = best.get(one.made.subtask)
            if known is None or _rank(known) < _rank(one):
                best[one.made.subtask] = one
        return cls(
            path=path,
            version=version,
            damage=[one for one in found if isinstance(one, str)],
            manifests=[best[subtask] for subtask in sorted(best)],
        )

    def plain(self) -> dict[str, Any]:
        """Return the report as dicts, lists, strings and numbers."""
        return {
            "path": self.path,
            "version": self.version,
            "damage": list(self.damage),
            "subtasks": [_plain_manifest(manifest) for manifest in self.manifests],
        }

    def show(self) -> None:
        """Print the report."""
        click.echo(f"{self.path} version {self.version}")
        for fault in self.damage:
            click.echo(f"DAMAGED  {fault}")
        for manifest in self.manifests:
            _show_manifest(manifest)


def _rank(manifest: Manifest) -> tuple[Any, Any]:
    return manifest.made.epoch, manifest.made.attempt_id


def _plain_manifest(manifest: Manifest) -> dict[str, Any]:
    groups = manifest.made.range
    plain = {
        "subtask": manifest.made.subtask,
        "key_groups": [groups.start, groups.end],
        "backend": manifest.backend,
        "files": len(manifest.files),
        "bytes": sum(file.size for file in manifest.files),
    }
    return plain | ({} if manifest.backend != _BACKEND else _plain_layers(manifest))


def _plain_layers(manifest: Manifest) -> dict[str, Any]:
    layers = layers_of(manifest.files)
    size = sum(file.size for file in manifest.files)
    return {
        "read_amplification": len(layers),
        "space_amplification": round(size / layers[0].size, 2) if layers else None,
        "runs": list(_runs(layers)),
    }


def _runs(layers: Sequence[Layer]) -> Iterator[Mapping[str, Any]]:
    for depth, layer in enumerate(layers):
        for file in layer.files:
            yield {
                "run": depth,
                "key groups": str(file.range),
                "bytes": file.size,
                "cells": file.meta.get("entries", 0),
                "deletes": file.meta.get("deletes", 0),
                "file": file.name,
            }


def _show_manifest(manifest: Manifest) -> None:
    plain = _plain_manifest(manifest)
    start = (
        f"subtask {plain['subtask']}, key groups {manifest.made.range}, backend "
        f"{manifest.backend}: {plain['files']} files, {plain['bytes']:,} bytes"
    )
    if "runs" not in plain:
        click.echo(f"{start}; only files of the lsm backend can be inspected")
        return
    space = plain["space_amplification"]
    click.echo(
        f"{start}; read amplification {plain['read_amplification']} runs, space amplification "
        f"{'-' if space is None else f'{space:.2f}'} (all files ÷ the oldest run)"
    )
    columns = ("run", "key groups", "bytes", "cells", "deletes", "file")
    print_table(columns, [[run[column] for column in columns] for run in plain["runs"]])


@attrs.frozen(kw_only=True)
class Report:
    """Everything that the command found."""

    operators: Sequence[OperatorReport] = ()
    files: Sequence[FileReport] = ()

    def plain(self) -> dict[str, Any]:
        """Return the report as dicts, lists, strings and numbers."""
        return {
            "operators": [operator.plain() for operator in self.operators],
            "files": [file.plain() for file in self.files],
        }

    def show(self) -> None:
        """Print the report."""
        for operator in self.operators:
            operator.show()
        for file in self.files:
            file.show()
