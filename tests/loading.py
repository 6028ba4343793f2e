"""Scripts, examples and jobs as modules: they are files, and not part of a package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load(file: Path) -> ModuleType:
    """Import a file once, as ``forebay_<folder>_<file>``; by that name its objects are pickled."""
    name = f"forebay_{file.parent.name}_{file.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
