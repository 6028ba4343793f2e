"""Make the pictures of `forebay top` in docs/how-to/on-call.md, by running it on each incident.

``python scripts/terminal_pictures.py`` provokes the incidents of tests/on_call in a temporary
directory and writes an SVG file for each one.
"""

from __future__ import annotations

import importlib.util
import re
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from forebay_state_api.commands.top_screen import TopScreen
from forebay_state_api.observing import DirectoryWatch
from forebay_state_api.storage.opening import open_storage

ROOT: Final = Path(__file__).resolve().parent.parent
PICTURES: Final = ROOT / "docs" / "how-to"
_COLUMNS: Final = 110
_SHOWN: Final = "s3://bucket/state"
"""The state directory that the pictures show."""
_FONT_FILES: Final = re.compile(r"@font-face \{.*?\n    \}", re.DOTALL)
"""Fonts from the network: a viewer without them uses its own."""


def incidents() -> dict[str, Any]:
    """Return the functions that provoke the incidents, by name."""
    path = ROOT / "tests" / "on_call" / "incidents.py"
    spec = importlib.util.spec_from_file_location("incidents", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(module.INCIDENTS)


def picture(incident: str, directory: Path) -> str:
    """Provoke an incident in an empty directory, and return the screen as SVG."""
    incidents()[incident](directory)
    views = DirectoryWatch(open_storage(directory)).refresh()
    screen = TopScreen(url=_SHOWN, views=views, now=datetime.now(UTC))
    with (directory / "printed").open("w", encoding="utf-8") as printed:
        terminal = Console(
            record=True, width=_COLUMNS, file=printed, force_terminal=True, color_system="truecolor"
        )
        terminal.print(screen)
    text = terminal.export_svg(title="forebay top", unique_id=incident)
    return _FONT_FILES.sub("", text)


def path_of(incident: str) -> Path:
    """Return the file of a picture."""
    return PICTURES / f"on-call-{incident}.svg"


def main() -> None:
    """Write all pictures."""
    for incident in incidents():
        with tempfile.TemporaryDirectory() as directory:
            path_of(incident).write_text(picture(incident, Path(directory)), encoding="utf-8")


if __name__ == "__main__":
    main()
