"""``forebay state export``: a state, or a whole operator, as files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from forebay_cli.options.key_groups import key_groups_option
from forebay_cli.output.progress import shown_progress
from forebay_cli.output.report import json_option, print_json
from forebay_cli.state.scan import ALL_STATES, chosen_columns, tables, timers_option
from forebay_cli.state.shown_state import show_version, version_plain
from forebay_cli.state.source import StateSource, state_source, version_option
from forebay_cli.state.table_files import FORMATS, format_of, table_writer
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.storage import open_storage
from forebay_state_api.storage.urls import located, scheme_of
from forebay_state_processor.importing.replacing import open_next_version

if TYPE_CHECKING:
    import pyarrow as pa

    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_api.keys import KeyGroupRange
    from forebay_state_api.progress import Progress
    from forebay_state_processor.reading.snapshot import Snapshot

_PART: Final = "part-{:05d}.{}"


@click.command("export")
@click.argument("target", metavar="FILE|URL")
@click.option("--state", help="One state.", show_default=ALL_STATES)
@click.option(
    "--format",
    "chosen",
    type=click.Choice([*FORMATS]),
    help="The format.",
    show_default="by the ending",
)
@click.option("--columns", help="Columns, separated by commas.", show_default="all")
@timers_option
@click.option("--flat", is_flag=True, help="A row per element of a list or entry of a map.")
@key_groups_option
@click.option(
    "--rows-per-file",
    type=click.IntRange(min=1),
    help="Write a folder of files with at most this many rows, for large states.",
)
@click.option("--overwrite", is_flag=True, help="Replace a file that exists.")
@click.option(
    "--checkpoint",
    metavar="LOCATION",
    help="The version that the stopped query of this checkpoint opens next, to edit it.",
)
@version_option
@json_option
@state_source
def export_state(
    *,
    target: str,
    state: str | None,
    chosen: str | None,
    columns: str | None,
    key_groups: KeyGroupRange | None,
    rows_per_file: int | None,
    checkpoint: str | None,
    version: str | None,
    source: StateSource,
    timers: bool,
    flat: bool,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write state to a file, or to storage if the name is a URL.

    The columns are the same as for `scan`. In CSV nested values are JSON. A file appears when it is
    whole.
    """
    form = format_of(target, chosen)
    files = _Files(target, form, source.read.settings.storage_options(), overwrite=overwrite)
    with _opened(source, version, checkpoint) as snapshot, shown_progress() as progress:
        reader = tables(snapshot, state, key_groups, flat=flat, timers=timers)
        names = chosen_columns(reader.schema, columns)
        progress.stage("exporting")
        batches = _batches(reader, names, progress)
        schema = reader.schema.empty_table().select(names).schema
        rows = files.write(schema, batches, rows_per_file)
        shown = version_plain(snapshot)
    if as_json:
        print_json(shown | {"rows": rows, "files": files.written})
    else:
        show_version(snapshot)
        click.echo(f"{rows:,} rows in {', '.join(files.written)}")


def _opened(source: StateSource, version: str | None, checkpoint: str | None) -> Snapshot:
    """Pin a version: what ``import --replace`` with this checkpoint edits, or a chosen one."""
    if checkpoint is None:
        return source.open(version)
    if version is not None or source.provisional:
        raise ConfigurationError(
            "--checkpoint names the version: leave --version and --provisional out"
        )
    return open_next_version(source.read, checkpoint, show_expired=source.show_expired)


def _batches(
    reader: pa.RecordBatchReader, names: list[str], progress: Progress
) -> Iterator[pa.RecordBatch]:
    for batch in reader:
        yield batch.select(names)
        progress.advance(batch.num_rows)


class _Files:
    """The files of one export, each written whole or not at all."""

    def __init__(self, target: str, form: str, options: dict[str, Any], *, overwrite: bool) -> None:
        place = located(target)
        parent, _, self._name = place.rstrip("/").rpartition("/")
        self._form: Final = form
        self._overwrite: Final = overwrite
        self._storage: ObjectStorage | None = None
        self._folder = Path(parent or ("/" if place.startswith("/") else "."))
        if scheme_of(place):
            self._storage = open_storage(parent, options)
        elif not self._folder.is_dir():
            raise ConfigurationError(f"there is no directory {self._folder}")
        self.written: list[str] = []

    def write(
        self, schema: pa.Schema, batches: Iterable[pa.RecordBatch], per_file: int | None
    ) -> int:
        """Write all rows, into one file or into a folder of them; return their number."""
        if per_file is None:
            self._check_absent(self._name)
            return self._file(self._name, schema, batches)
        rows = 0
        for number, part in enumerate(_parts(batches, per_file)):
            name = f"{self._name}/{_PART.format(number, self._form)}"
            self._check_absent(name)
            rows += self._file(name, schema, part)
        return rows

    def _file(self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
        target = self._folder / name
        if self._storage is None:
            target.parent.mkdir(parents=True, exist_ok=True)
        beside = None if self._storage is not None else target.parent
        handle, temporary = tempfile.mkstemp(prefix=".forebay-export-", dir=beside)
        os.close(handle)
        path, rows = Path(temporary), 0
        try:
            with table_writer(path, schema, self._form) as write:
                for batch in batches:
                    write(batch)
                    rows += batch.num_rows
            if self._storage is None:
                path.chmod(0o644)
                path.replace(target)
            else:
                self._storage.put(name, path.read_bytes())
        finally:
            path.unlink(missing_ok=True)
        self.written.append(self._shown(name))
        return rows

    def _check_absent(self, name: str) -> None:
        if self._storage is None and (self._folder / name).exists():
            self._check_is_file(self._folder / name)
        if self._overwrite:
            return
        if self._storage is None:
            exists = (self._folder / name).exists()
        else:
            folder = name.rpartition("/")[0]
            exists = any(one.name == name for one in self._storage.list(folder))
        if exists:
            raise ConfigurationError(f"{self._shown(name)} exists: pass --overwrite to replace it")

    def _check_is_file(self, path: Path) -> None:
        if not path.is_file():  # renaming a file to a device or a pipe would replace it
            raise ConfigurationError(f"{path} is no file: name one, or use state scan --json")

    def _shown(self, name: str) -> str:
        if self._storage is None:
            return str(self._folder / name)
        return f"{self._storage.url.rstrip('/')}/{name}"


def _parts(batches: Iterable[pa.RecordBatch], per_file: int) -> Iterator[list[pa.RecordBatch]]:
    """Split batches into lists with ``per_file`` rows each; the last one may have fewer."""
    part: list[pa.RecordBatch] = []
    room = per_file
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            taken = batch.slice(start, room)
            part.append(taken)
            start, room = start + taken.num_rows, room - taken.num_rows
            if not room:
                yield part
                part, room = [], per_file
    if part:
        yield part
