"""Files that `forebay state import` reads, as data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from forebay_state_api.errors import ConfigurationError
from forebay_state_api.settings.redaction import redacted
from forebay_state_processor.importing.tables import Tables
from forebay_state_processor.reading.arrow_types import arrow

_FORMATS: Final = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow"}


def input_tables(arguments: tuple[str, ...], timers: str | None) -> Tables:
    """Return the tables that ``STATE=FILE`` and at most one ``FILE`` name."""
    states: dict[str, Any] = {}
    operator = None
    for argument in arguments:
        _refuse_url(argument)  # before it is split: a secret may contain an equals sign
        state, is_named, path = argument.partition("=")
        if not is_named:
            state, path = "", argument
        elif not (state and path):
            raise ConfigurationError(
                f"{argument!r} is not of the form STATE=FILE, as in total=total.parquet"
            )
        if (state and state in states) or (not state and operator is not None):
            raise ConfigurationError(f"{argument!r}: an earlier file is for the same table")
        if state:
            states[state] = _table(path)
        else:
            operator = _table(path)
    if timers is not None:
        _refuse_url(timers)
    return Tables(
        states=states, operator=operator, timers=None if timers is None else _table(timers)
    )


def _refuse_url(argument: str) -> None:
    if ":/" in argument:
        raise ConfigurationError(
            f"{redacted(argument)} is a URL, and a table is a file here, or a folder of files. "
            "import_state of forebay_state_processor.importing takes a pyarrow.dataset, which may "
            "be of a store"
        )


def _table(path: str) -> Any:
    """Open a file, or a folder of files."""
    import pyarrow.dataset

    lib: Any = arrow()
    form = _format_of(Path(path))
    try:
        return pyarrow.dataset.dataset(path, format=form)
    except (lib.ArrowException, OSError) as error:
        raise ConfigurationError(f"{path} is not a {form} file: {error}") from error


def _format_of(path: Path) -> str:
    """Return the format of a file, or of all files in a folder, by the ends of their names."""
    files = [path]
    if path.is_dir():
        files = [one for one in path.iterdir() if not one.name.startswith((".", "_"))]
    forms = {_FORMATS.get(one.suffix.lower()) for one in files}
    if len(forms) != 1 or None in forms:
        raise ConfigurationError(
            f"{path}: a table is a .parquet or an .arrow file, or a folder of such files"
        )
    if not path.exists():
        raise ConfigurationError(f"there is no file {path}")
    (form,) = forms
    assert form is not None
    return form
