"""``--console``: shows the demo in the browser, from a process of its own."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Final, Self

from forebay_state_api.errors import ConfigurationError
from forebay_state_api.plugins import plugins

if TYPE_CHECKING:
    from forebay_spark_runtime.demo.directory import DemoDirectory

_FOREBAY: Final = "from forebay_cli.main import main; main()"
_PATIENCE_S: Final = 10.0


def require_console() -> None:
    """Raise `ConfigurationError` unless a plugin has the command ``console``."""
    if "console" not in plugins().commands():
        raise ConfigurationError("--console needs the console: pip install forebay-console")


class ConsoleProcess:
    """``forebay console`` on the demo's state directory, until `close`; a context manager.

    It reads what the query stores, so it shares neither a process nor a port with Spark.
    """

    def __init__(self, directory: DemoDirectory) -> None:
        """Start it and wait for its address; `ConfigurationError` if it does not start."""
        directory.state.mkdir(exist_ok=True)
        self._log: Final = directory.console_log
        command = [sys.executable, "-c", _FOREBAY, "console", "--port", "0", "--state-dir"]
        with self._log.open("wb") as log:
            self._process: Final = subprocess.Popen(  # noqa: S603 - our own command
                [*command, str(directory.state)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C ends the demo, which then ends the console
            )
        self.url: Final = self._address()
        """The page's address."""

    def close(self) -> None:
        """Stop it. Safe to call twice."""
        self._process.terminate()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it, also after a failure."""
        self.close()

    def _address(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = next((word for word in line.split() if word.startswith("http")), None)
        if found is None:
            self.close()
            raise ConfigurationError(f"the console did not start; see {self._log}")
        return found
