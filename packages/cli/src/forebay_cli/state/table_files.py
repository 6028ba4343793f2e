"""Write Arrow record batches as Parquet, Arrow, CSV or lines of JSON."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from forebay_state_api.errors import ConfigurationError
from forebay_state_api.settings.redaction import redacted
from forebay_state_processor.reading.arrow_types import arrow, jsonable, to_json

if TYPE_CHECKING:
    import pyarrow as pa

Write = Callable[["pa.RecordBatch"], None]
"""Appends a batch to a file."""


def format_of(name: str, chosen: str | None) -> str:
    """Return the chosen format of a file, by default the format of its ending."""
    if chosen is not None:
        return chosen
    ending = name.rpartition(".")[2].lower()
    if ending not in _ENDINGS:
        raise ConfigurationError(
            f"the format of {redacted(name)!r} is not known: pass --format, or end the name in "
            f"{', '.join('.' + one for one in _ENDINGS)}"
        )
    return _ENDINGS[ending]


@contextlib.contextmanager
def table_writer(path: Path, schema: pa.Schema, form: str) -> Iterator[Write]:
    """Open a file for record batches; it is whole when the context exits."""
    with FORMATS[form](path, schema) as write:
        yield write


@contextlib.contextmanager
def _parquet(path: Path, schema: pa.Schema) -> Iterator[Write]:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(path, schema) as writer:
        yield writer.write_batch


@contextlib.contextmanager
def _arrow(path: Path, schema: pa.Schema) -> Iterator[Write]:
    import pyarrow.ipc

    with pyarrow.ipc.new_file(str(path), schema) as writer:
        yield writer.write_batch


@contextlib.contextmanager
def _csv(path: Path, schema: pa.Schema) -> Iterator[Write]:
    """Write nested columns as JSON, bytes in base64."""
    import pyarrow.csv

    lib = arrow()
    as_text = [lib.types.is_nested(one.type) or lib.types.is_binary(one.type) for one in schema]
    flat = lib.schema(
        [
            lib.field(one.name, lib.string() if text else one.type)
            for one, text in zip(schema, as_text, strict=True)
        ]
    )
    with pyarrow.csv.CSVWriter(str(path), flat) as writer:

        def write(batch: pa.RecordBatch) -> None:
            columns = [
                _texts(column, kind.type) if text else column
                for column, kind, text in zip(batch.columns, schema, as_text, strict=True)
            ]
            writer.write_batch(lib.RecordBatch.from_arrays(columns, schema=flat))

        yield write


def _texts(column: pa.Array, kind: pa.DataType) -> pa.Array:
    lib = arrow()
    convert = plain_of(kind)
    values = [convert(value) for value in column.to_pylist()]
    if lib.types.is_binary(kind):
        texts = [None if value is None else jsonable(value) for value in values]
    else:
        texts = [None if value is None else to_json(value) for value in values]
    return lib.array(texts, lib.string())


@contextlib.contextmanager
def _jsonl(path: Path, schema: pa.Schema) -> Iterator[Write]:
    plain = {one.name: plain_of(one.type) for one in schema}
    with path.open("w", encoding="utf-8") as file:

        def write(batch: pa.RecordBatch) -> None:
            for row in batch.to_pylist():
                shown = {name: jsonable(plain[name](value)) for name, value in row.items()}
                file.write(f"{json.dumps(shown, ensure_ascii=False)}\n")

        yield write


def plain_of(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return a function that turns Arrow's pairs of a map into a dict, at any depth.

    Keys that are structs or lists cannot be keys of a dict: such maps stay lists of pairs.
    """
    types = arrow().types
    if types.is_map(kind):
        return _map_of(kind)
    if types.is_struct(kind):
        fields = {field.name: plain_of(field.type) for field in kind}
        return _each_or_null(lambda value: {name: fields[name](one) for name, one in value.items()})
    if types.is_list(kind):
        element = plain_of(kind.value_type)
        return _each_or_null(lambda value: [element(one) for one in value])
    return lambda value: value


def _map_of(kind: pa.DataType) -> Callable[[Any], Any]:
    key, item = plain_of(kind.key_type), plain_of(kind.item_type)
    whole = list if arrow().types.is_nested(kind.key_type) else dict
    return _each_or_null(lambda pairs: whole((key(one), item(two)) for one, two in pairs))


def _each_or_null(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


FORMATS: Final[Mapping[str, Callable[..., contextlib.AbstractContextManager[Write]]]] = {
    "parquet": _parquet,
    "arrow": _arrow,
    "csv": _csv,
    "jsonl": _jsonl,
}
_ENDINGS: Final = {name: name for name in FORMATS} | {"feather": "arrow", "json": "jsonl"}
