"""Packages that import their public names on first use, so that a command loads what it needs."""

from __future__ import annotations

import functools
import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def import_on_first_use(package: str) -> bool:
    """Import the public names of ``package`` when they are used, and return whether that works.

    The imports that type checkers read are the only list of the names; ``__all__`` and ``dir`` are
    made of it::

        if TYPE_CHECKING or not import_on_first_use(__name__):
            from forebay_state_api.keys import KeyGroupRange as KeyGroupRange

    Where a package is installed without its source, there is nothing to read: its imports run.
    """
    module = sys.modules[package]
    source = _source_of(module)
    if source is None:
        return False

    @functools.cache
    def homes() -> dict[str, str]:
        return _names_below_if(source)

    def import_name(name: str) -> Any:
        if name == "__all__":  # asked for by `from package import *`
            return sorted(homes())
        if name not in homes():
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}", name=name, obj=module
            )
        found = getattr(import_module(homes()[name]), name)
        setattr(module, name, found)
        return found

    vars(module).update(__getattr__=import_name, __dir__=lambda: sorted(homes()))
    return True


def _source_of(module: ModuleType) -> bytes | None:
    spec: Any = module.__spec__
    if not spec.origin.endswith(".py"):
        return None
    source: bytes = spec.loader.get_data(spec.origin)
    return source


def _names_below_if(source: bytes) -> dict[str, str]:
    """Return name → module for the imports below an ``if`` at the top level."""
    import ast

    blocks = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    return {
        alias.name: str(line.module)
        for block in blocks
        for line in block.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }
