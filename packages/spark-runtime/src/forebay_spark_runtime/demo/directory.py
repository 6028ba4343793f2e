"""The demo's directory: its layout, and starting afresh."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from forebay_spark_runtime.demo.flights import file_name
from forebay_state_api.errors import ConfigurationError

_MARK: Final = "made-by-forebay-demo"


def default_directory() -> Path:
    """Return ``forebay-demo`` below the user's cache directory."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(caches) / "forebay-demo"


class DemoDirectory:
    """The directory of one demo, which writes nothing outside of it."""

    def __init__(self, root: Path) -> None:
        """Create the directory, or use an earlier demo's.

        Raises `ConfigurationError` if it holds something else or cannot be used.
        """
        self.root = root.expanduser().absolute()
        self.data = self.root / "data"
        self.stream = self.root / "stream"
        self.checkpoint = self.root / "checkpoint"
        self.state = self.root / "state"
        self.carried = self.root / "carried"
        self.warehouse = self.root / "warehouse"
        self.log = self.root / "spark.log"
        self.console_log = self.root / "console.log"
        self._take()

    def _take(self) -> None:
        mark = self.root / _MARK
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            if any(self.root.iterdir()) and not mark.exists():
                raise ConfigurationError(
                    f"{self.root} is not empty, and not a demo's: choose another --dir"
                )
            mark.touch()
        except OSError as error:
            raise ConfigurationError(
                f"--dir {self.root} cannot be used: {error.strerror}"
            ) from error

    def clear(self) -> None:
        """Forget all runs; the converted flights stay."""
        for folder in (self.stream, self.checkpoint, self.state, self.carried, self.warehouse):
            if folder.exists():
                shutil.rmtree(folder)
        for log in (self.log, self.console_log):
            log.unlink(missing_ok=True)

    @property
    def months_done(self) -> int:
        """The number of months that Spark has committed: one file and one micro-batch each."""
        commits = self.checkpoint / "commits"
        names = [file.name for file in commits.iterdir()] if commits.exists() else []
        return max((int(name) + 1 for name in names if name.isdigit()), default=0)

    def files(self, months: int) -> list[Path]:
        """Return the files of the first ``months`` months."""
        return [self.stream / file_name(number) for number in range(months)]

    def keep(self, months: int) -> None:
        """Delete the files of later months, which an interrupted run did not reach."""
        wanted = set(self.files(months))
        for file in self.stream.glob("*.parquet"):
            if file not in wanted:
                file.unlink()
