"""Parse the path or URL of a storage.

A malformed URL is refused, and so are parts that a store would ignore or normalise: no directory is
created by mistake, and two different URLs never silently name the same place.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from forebay_state_api.errors import ConfigurationError
from forebay_state_api.settings.redaction import redacted

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):/")
"""The beginning of a URL; a single letter is a Windows drive."""
_NEARLY: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+)(?::|//)")
"""The beginning of a URL in which a character or two are missing."""
_FOREIGN: Final = frozenset(
    "adls ftp gcs nfs oci oss s3n sftp smb ssh wasb wasbs".split()  # noqa: SIM905 - one line
)
"""Schemes that people use although nothing here opens them."""
_VARIABLE: Final = re.compile(r"\$(?:\{\w*\}?|\(|[A-Za-z_]\w*)")
_WINDOWS: Final = re.compile(r"[A-Za-z]:/|.*\\")
_NAME_ONE: Final = "name a directory or a URL (spark.forebay.state.dir, or state_dir=)"


def located(text: str) -> str:
    """Return an absolute path for a path or a ``file:`` URL, and any other URL as it is.

    Raises `ConfigurationError` for a malformed URL, of which a part would be ignored or which would
    be taken for a path, and for a URL that contains a password or a signature.
    """
    _check_text(text)
    scheme = scheme_of(text)
    if scheme == "dbfs" and not text.startswith("dbfs://"):
        text = f"dbfs://{text[len('dbfs:') :]}"  # as Databricks spells it: dbfs:/path
    if scheme and scheme != "file":
        _check_url(text, scheme)
        return text
    path = _path_of(text) if scheme else _checked_path(text)
    try:
        return str(Path(path).expanduser().absolute())
    except RuntimeError as error:
        raise ConfigurationError(
            f"the state directory {text!r} cannot be found: {error}"
        ) from error


def scheme_of(text: str) -> str:
    """Return a URL's scheme in lower case, and ``""`` for a path."""
    match = _SCHEME.match(text)
    return match[1].lower() if match else ""


def is_missing(url: str) -> bool:
    """Return whether a local directory does not exist; false for every other URL."""
    return not scheme_of(url) and not Path(url).exists()


def _check_text(text: str) -> None:
    if not text:
        raise ConfigurationError(f"the state directory is an empty string; {_NAME_ONE}")
    if text != text.strip():
        raise ConfigurationError(
            f"the state directory {redacted(text)!r} begins or ends with a blank: leave it out"
        )
    if "\0" in text:
        raise ConfigurationError(
            f"the state directory {redacted(text)!r} has a NUL character in it; {_NAME_ONE}"
        )
    if found := _VARIABLE.search(text):
        raise ConfigurationError(
            f"the state directory {redacted(text)!r} has {found[0]} in it, and variables "
            "are not replaced here: write the value"
        )


def _checked_path(text: str) -> str:
    # Imported here to avoid a circular import: the hooks import this module.
    from forebay_state_api.plugins import plugins

    if nearly := _NEARLY.match(text):
        scheme = nearly[1].lower()
        if scheme in _FOREIGN or scheme in plugins().storages():
            raise _neither_path_nor_url_error(text, scheme)
    if os.name != "nt" and _WINDOWS.match(text):
        raise ConfigurationError(
            f"the state directory {text!r} is a Windows path: pass a path of this operating system"
        )
    return text


def _neither_path_nor_url_error(text: str, scheme: str) -> ConfigurationError:
    begin = "file:/" if scheme == "file" else f"{scheme}://"
    shown = redacted(text)
    return ConfigurationError(
        f"{shown!r} is neither a path nor a URL: URLs begin with {begin} (a Path object "
        f"drops one of the slashes: pass a str), and a directory of that name is {'./' + shown!r}"
    )


def _path_of(url: str) -> str:
    """Return the path of a ``file:`` URL."""
    parts = urlsplit(url)
    if parts.netloc not in {"", "localhost"} or "?" in url or "#" in url:
        raise ConfigurationError(
            f"{redacted(url)!r} is not a URL of a local directory: write file:///absolute/path, "
            "with %23 for # and %3F for ?, or the path itself"
        )
    _check_folders(url, parts)
    from urllib.request import url2pathname  # imports http, which few state directories need

    return url2pathname(parts.path)


def _check_url(url: str, scheme: str) -> None:
    if not url[len(scheme) :].startswith("://"):
        raise _neither_path_nor_url_error(url, scheme)
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigurationError(f"{redacted(url)!r} is not a URL: {error}") from error
    if parts.password is not None:
        raise ConfigurationError(
            f"the URL of the storage at {parts.hostname} has a password in it, which would show "
            "in messages: set spark.forebay.storage.* instead"
        )
    if "?" in url or "#" in url:
        raise ConfigurationError(
            f"{redacted(url)!r} contains a ? or a #, after which stores ignore the rest: "
            "leave it out. A signature belongs in spark.forebay.storage.*"
        )
    _check_folders(url, parts)


def _check_folders(url: str, parts: SplitResult) -> None:
    """Refuse parts that stores normalise, written plainly or with ``%2E`` and ``%2F``."""
    folders = unquote(parts.path).removeprefix("/").removesuffix("/").split("/")
    if {".", ".."}.intersection(folders) or (len(folders) > 1 and "" in folders):
        raise ConfigurationError(
            f"{redacted(url)!r} has '..', '.' or an empty name between its slashes, which stores "
            "normalise: write the folder that you mean"
        )
