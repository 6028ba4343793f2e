"""``forebay bundle``: one archive for a bug report, without anything that users have stored."""

from __future__ import annotations

import json
import os
import platform
import zipfile
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

from forebay_cli.live.bundled_operator import bundled_operator
from forebay_cli.options.conf import conf_options
from forebay_cli.options.operators import of_query_option, of_uid_option, operators_in
from forebay_cli.options.state_directory import state_dir_option, state_directory
from forebay_cli.output.progress import shown_progress
from forebay_cli.output.report import text_of
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.plugins import InstalledPlugin, plugins
from forebay_state_api.settings import PREFIX
from forebay_state_api.settings.redaction import MASK
from forebay_state_api.storage.urls import located, scheme_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_api.progress import Progress
    from forebay_state_api.settings import SettingRow, Settings

_NAMES: Final = ("state.backend", "compaction.service")
"""Settings whose texts are names of plugins."""
_LIBRARIES: Final = (
    *("pyspark", "pyarrow", "numpy", "obstore", "fsspec", "msgpack", "attrs", "ray", "grpcio"),
    *("click", "rich", "cloudpickle", "xxhash", "pluggy"),
)
_README: Final = """\
Made by `forebay bundle` for a bug report.

It holds versions of software, the settings of the job without secrets, and for each operator the
shape of its newest manifests (numbers, names and types of states, sizes of files), what each
micro-batch took, and how its state is spread. It holds the names of queries, uids and states.

It holds no key, no value, no content of files or operator state, no name of a savepoint, no
address, and no secret. Look at it before you send it: each file is JSON.
"""


@click.command("bundle")
@state_dir_option
@of_query_option
@of_uid_option
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The archive, a .zip.",
    show_default="forebay-bundle-TIME.zip here",
)
@conf_options
def bundle(
    state_dir: str, query: str | None, uid: str | None, output: Path | None, settings: Settings
) -> None:
    """Write one archive for a bug report: versions, settings, shapes and metrics.

    It never holds keys, values, secrets or addresses. Give the job's --properties-file, so that its
    settings are included.
    """
    root = state_directory(state_dir, settings)
    now = datetime.now(UTC)
    path = output or Path(f"forebay-bundle-{now:%Y%m%dT%H%M%SZ}.zip")
    if path.suffix.lower() != ".zip":
        raise ConfigurationError(f"a bundle is a zip archive: let {path} end in .zip")
    with shown_progress() as progress:
        contents = dict(_contents(root, state_dir, query, uid, settings, now, progress))
    try:
        with (
            open(path, "xb", opener=_private) as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            for name, content in contents.items():
                archive.writestr(name, content)
    except FileExistsError as error:
        raise ConfigurationError(f"{path} exists: name another file with --output") from error
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error
    click.echo(f"{path}: {len(contents)} files, {path.stat().st_size:,} bytes")


def _private(path: str, flags: int) -> int:
    """Open a file that only its owner may read: it names queries and states."""
    return os.open(path, flags, 0o600)


def _contents(  # noqa: PLR0917 - one caller
    root: ObjectStorage,
    state_dir: str,
    query: str | None,
    uid: str | None,
    settings: Settings,
    now: datetime,
    progress: Progress,
) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each file."""
    operators = operators_in(root, query, uid)
    yield "README.txt", _README
    yield "versions.json", _json({"made": now, **_versions()})
    storage = scheme_of(located(state_dir)) or "file"
    yield "settings.json", _json({"state_dir": f"{storage}://", "settings": _shown(settings)})
    for number, operator in enumerate(operators, 1):
        progress.stage(f"operator {number} of {len(operators)}")
        for name, found in bundled_operator(operator, root, now, progress).items():
            yield f"operators/{number}/{name}.json", _json(found)


def _json(found: Any) -> str:
    return json.dumps(found, indent=1, default=text_of)


def _versions() -> dict[str, Any]:
    installed = {one.distribution: _plugin(one) for one in plugins().installed()}
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "plugins": installed,
        "libraries": {name: found for name in _LIBRARIES if (found := _version_of(name))},
    }


def _plugin(plugin: InstalledPlugin) -> dict[str, Any]:
    """Return a plugin; of its problems, whose texts may name anything, only the number."""
    return {**attrs.asdict(plugin), "problems": len(plugin.problems)}


def _version_of(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _shown(settings: Settings) -> dict[str, Any]:
    """Return the settings; of users' texts, which may name hosts and secrets, only the source."""
    return {
        row.key: {"value": row.value if _is_shown(row, settings) else MASK, "from": row.source}
        for row in settings.explain()
    }


def _is_shown(row: SettingRow, settings: Settings) -> bool:
    name = row.key.removeprefix(PREFIX)
    is_number = isinstance(settings[name], int | float)
    return is_number or row.source == "default" or name in _NAMES
