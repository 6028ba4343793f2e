"""``--function MODULE:NAME`` of commands: a function in a module that can be imported here."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from typing import Any

from forebay_state_api.errors import ConfigurationError


def loaded_function(path: str) -> Any:
    """Return the function at ``module:name``; a class is called without arguments.

    Raises `ConfigurationError` if it does not exist, or if its module or class raises an error.
    """
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise ConfigurationError(f"--function takes module:name, not {path!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found() if isinstance(found, type) else found
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigurationError(f"--function {path}: {error}") from error
    except Exception as error:
        *_, last = traceback.extract_tb(error.__traceback__)
        raise ConfigurationError(
            f"--function {path}: {error!r}, at {last.filename}, line {last.lineno}"
        ) from error
    finally:
        sys.path.pop(0)
