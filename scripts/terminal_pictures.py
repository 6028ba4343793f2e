"""Make the pictures of terminals in docs/how-to, by running what they show.

``python scripts/terminal_pictures.py`` provokes the incidents of tests/on_call for `forebay top`,
and runs commands on the state of the page "look into state". Each picture is an SVG file. Arguments
are the names of the pictures to make, such as ``on-call-calm``; by default all. ``demo`` is the
recording of a run of ``forebay demo`` for the first page of the site; its lines appear as they
came, with shorter pauses.
"""

from __future__ import annotations

import importlib.util
import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.text import Text

from forebay_cli.live.top_screen import TopScreen
from forebay_state_api.storage.opening import open_storage
from forebay_state_processor.observing import DirectoryWatch

ROOT: Final = Path(__file__).resolve().parent.parent
PICTURES: Final = ROOT / "docs" / "how-to"
PAGE: Final = PICTURES / "look-into-state.md"
SESSIONS: Final = {
    "state-on-call": (
        "forebay state ls --state-dir state",
        "forebay state get ann,5 --state-dir state",
        "forebay state history ann,5 --state total --state-dir state",
        "forebay state diff --from 1 --to 2 --state-dir state",
    ),
    "state-scan": (
        "forebay state scan --columns key_1,total --state-dir state",
        "forebay state scan --state seen --flat --columns key_1,value --state-dir state",
        "forebay state skew --query orders --uid totals --state-dir state",
    ),
}
"""Picture → the commands that it shows, on the state of `PAGE`."""
RECORDING: Final = ROOT / "docs" / "site" / "static" / "demo.svg"
_PAUSE_S: Final = 1.0
"""The longest pause between two lines of a recording."""
_CURSOR: Final = re.compile(r"\x1b\[\??[\d;]*[A-HJKlhsu]")
"""Control sequences that move the cursor or erase: those of a spinner."""
_COLUMNS: Final = 110
_SHOWN: Final = "s3://bucket/state"
"""The state directory that the pictures of `forebay top` show."""
_FONT_FILES: Final = re.compile(r"@font-face \{.*?\n    \}", re.DOTALL)
"""Fonts from the network: a viewer without them uses its own."""
_JOB: Final = re.compile(r"^```python\n((?:(?!```).)*KeyedJob.*?)^```$", re.MULTILINE | re.DOTALL)
"""The block of `PAGE` that makes its state."""


def incidents() -> dict[str, Any]:
    """Return the functions that provoke the incidents, by name."""
    path = ROOT / "tests" / "on_call" / "incidents.py"
    spec = importlib.util.spec_from_file_location("incidents", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(module.INCIDENTS)


def picture(title: str, name: str, shown: Sequence[RenderableType]) -> str:
    """Return a terminal as SVG; ``name`` distinguishes it from other pictures on a page."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        terminal = Console(
            record=True, width=_COLUMNS, file=nowhere, force_terminal=True, color_system="truecolor"
        )
        for one in shown:
            terminal.print(one)
    return _FONT_FILES.sub("", terminal.export_svg(title=title, unique_id=name))


def screen(incident: str, directory: Path) -> TopScreen:
    """Provoke an incident in an empty directory, and return what `forebay top` shows."""
    incidents()[incident](directory)
    views = DirectoryWatch(open_storage(directory)).views()
    return TopScreen(url=_SHOWN, views=views, now=datetime.now(UTC))


def printed(command: str, directory: Path) -> str:
    """Run a command of `forebay` in a terminal, and return what it prints, with its styles.

    Standard error is no terminal here, so that progress bars, which vanish in the end, are not
    drawn; what it says comes first.
    """
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (50, _COLUMNS))
    program = [str(Path(sys.executable).parent / "forebay"), *shlex.split(command)[1:]]
    how: dict[str, Any] = {"stdin": its, "stdout": its, "stderr": subprocess.PIPE, "cwd": directory}
    environment = {**os.environ, "TERM": "xterm-256color"}
    with subprocess.Popen(program, env=environment, **how) as process:
        os.close(its)
        shown = b"".join(iter(lambda: _read(ours), b""))
        assert process.stderr is not None
        said = process.stderr.read()
    os.close(ours)
    if process.returncode:
        raise SystemExit(f"{command}: {said.decode()}")
    return (said + shown).decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # the program has exited
        return b""


def make_state(directory: Path) -> None:
    """Run the job of `PAGE` in an empty directory."""
    block = _JOB.search(PAGE.read_text(encoding="utf-8"))
    assert block is not None
    subprocess.run([sys.executable, "-c", block[1]], cwd=directory, check=True)


def session(commands: Sequence[str], directory: Path) -> list[Text]:
    """Return a terminal in which commands were typed, one after the other."""
    found = []
    for command in commands:
        found.append(Text(f"$ {command}", style="bold green"))
        found.append(Text.from_ansi(printed(command, directory)))
    return found


def top_pictures(wanted: Callable[[str], bool]) -> None:
    """Write the pictures of `forebay top`."""
    for incident in incidents():
        if wanted(name := f"on-call-{incident}"):
            with tempfile.TemporaryDirectory() as directory:
                shown = [screen(incident, Path(directory))]
            write(name, picture("forebay top", incident, shown))


def session_pictures(wanted: Callable[[str], bool]) -> None:
    """Write the pictures of `SESSIONS`."""
    with tempfile.TemporaryDirectory() as directory:
        make_state(Path(directory))
        for name, commands in SESSIONS.items():
            if wanted(name):
                shown = session(commands, Path(directory))
                write(name, picture("forebay state", name, shown))


def recorded(command: Sequence[str]) -> Iterator[tuple[float, str]]:
    """Run a command in a terminal; yield each line that remains, and when it was complete."""
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (50, _COLUMNS))
    environment = {**os.environ, "TERM": "xterm-256color"}
    begun, rest = time.monotonic(), ""
    with subprocess.Popen(command, env=environment, stdin=its, stdout=its, stderr=its) as process:
        os.close(its)
        for part in iter(lambda: _read(ours), b""):
            *lines, rest = (rest + part.decode()).split("\n")
            for line in lines:
                left = [shown for one in line.split("\r") if (shown := _CURSOR.sub("", one))]
                yield time.monotonic() - begun, left[-1] if left else ""
    os.close(ours)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed")


def recording(lines: Sequence[tuple[float, str]], title: str, name: str) -> str:
    """Return a terminal as SVG in which the lines appear one after the other."""
    svg = picture(title, name, [Text.from_ansi(text) for _, text in lines])
    style, shown_at, before = [], 0.0, 0.0
    for number, (at, _) in enumerate(lines):
        shown_at += min(at - before, _PAUSE_S)
        before = at
        style.append(f'[clip-path$="-line-{number})"] {{ animation: s 1ms {shown_at:.2f}s both }}')
    frames = "@keyframes s { from { opacity: 0 } to { opacity: 1 } }"
    moving = f"@media (prefers-reduced-motion: no-preference) {{ {frames} {' '.join(style)} }}"
    return svg.replace("</style>", f"{moving}</style>", 1)


def demo_recording(wanted: Callable[[str], bool]) -> None:
    """Write the recording of a run of ``forebay demo``."""
    if not wanted("demo"):
        return
    with tempfile.TemporaryDirectory() as directory:
        program = str(Path(sys.executable).parent / "forebay")
        found = recorded([program, "demo", "--dir", f"{directory}/.demo"])
        lines = [(at, text.replace(f"{directory}/", "")) for at, text in found]
    RECORDING.write_text(recording(lines, "./run demo", "demo"), encoding="utf-8")


def write(name: str, svg: str) -> None:
    """Write a picture to its file."""
    (PICTURES / f"{name}.svg").write_text(svg, encoding="utf-8")


def main(names: Sequence[str]) -> None:
    """Write the pictures with these names, or all."""

    def wanted(name: str) -> bool:
        return not names or name in names

    top_pictures(wanted)
    session_pictures(wanted)
    demo_recording(wanted)


if __name__ == "__main__":
    main(sys.argv[1:])
