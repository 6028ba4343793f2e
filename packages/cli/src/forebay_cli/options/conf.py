"""``--conf`` and ``--properties-file``: settings for commands, as in ``spark-submit``."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from forebay_engine.configuring import resolve_with_plugins

T = TypeVar("T")

_KEY_AND_VALUE: Final = re.compile(r"(?P<key>[^\s=:]+)\s*[=:\s]\s*(?P<value>.*)")


def conf_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add ``--conf`` and ``--properties-file`` to a command.

    The command receives the parameter ``settings``: the resolved `Settings`, where ``--conf``
    overrides the file.
    """

    @functools.wraps(command)
    def with_settings(*args: Any, conf: Mapping[str, str], **given: Any) -> T:
        return command(*args, settings=resolve_with_plugins(conf), **given)

    return conf_values(with_settings)


def conf_values(command: Callable[..., T]) -> Callable[..., T]:
    """Add the same options to a command that receives their values as they are, as ``conf``."""

    @functools.wraps(command)
    def with_conf(*args: Any, conf: Sequence[str], properties_file: Path | None, **given: Any) -> T:
        return command(*args, conf=_merged_settings(conf, properties_file), **given)

    add_conf = click.option(
        "--conf", "conf", multiple=True, metavar="KEY=VALUE", help="A setting, as in spark-submit."
    )
    add_properties_file = click.option(
        "--properties-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="A file such as spark-defaults.conf; --conf overrides it.",
    )
    return add_conf(add_properties_file(with_conf))


def _merged_settings(conf: Sequence[str], properties_file: Path | None) -> dict[str, str]:
    given = {} if properties_file is None else _properties(properties_file)
    given.update(_split(text) for text in conf)
    return given


def _split(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--conf {text!r}: expected key=value")
    return key.strip(), value.strip()


def _properties(path: Path) -> dict[str, str]:
    """Read a file as Spark does: ``key value``, ``key=value`` or ``key: value``, # comments."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{path} is no file of properties: {error}") from error
    return dict(_lines(text.splitlines(), path))


def _lines(lines: Iterable[str], path: Path) -> Iterable[tuple[str, str]]:
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith(("#", "!")):
            continue
        if (match := _KEY_AND_VALUE.fullmatch(line)) is None:
            raise click.UsageError(
                f"{path}, line {number}: expected a key and a value, got {line!r}"
            )
        yield match["key"], match["value"]
