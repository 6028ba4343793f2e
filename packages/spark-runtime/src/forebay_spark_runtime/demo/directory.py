"""The demo's directory: what is where in it, and beginning anew."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from forebay_spark_runtime.demo.flights import file_name
from forebay_state_api.errors import ConfigurationError

_MARK: Final = "made-by-forebay-demo"


def default_directory() -> Path:
    """``forebay-demo`` below the user's directory for caches."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(caches) / "forebay-demo"


class DemoDirectory:
    """The directory of one demo; nothing outside of it is written."""

    def __init__(self, root: Path) -> None:
        """Raises `ConfigurationError` for a directory that holds something else."""
        self.root = root.expanduser().absolute()
        self.data = self.root / "data"
        self.stream = self.root / "stream"
        self.checkpoint = self.root / "checkpoint"
        self.state = self.root / "state"
        self.carried = self.root / "carried"
        self.warehouse = self.root / "warehouse"
        self.log = self.root / "spark.log"
        self._take()

    def _take(self) -> None:
        mark = self.root / _MARK
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            if any(self.root.iterdir()) and not mark.exists():
                message = f"{self.root} is not empty, and not a demo's: choose another --dir"
                raise ConfigurationError(message)
            mark.touch()
        except OSError as error:
            message = f"--dir {self.root} cannot be used: {error.strerror}"
            raise ConfigurationError(message) from error

    def clear(self) -> None:
        """Forget all runs; the converted flights stay."""
        for folder in (self.stream, self.checkpoint, self.state, self.carried, self.warehouse):
            if folder.exists():
                shutil.rmtree(folder)
        self.log.unlink(missing_ok=True)

    @property
    def months_done(self) -> int:
        """Months that Spark has committed: one file and one micro-batch each."""
        commits = self.checkpoint / "commits"
        names = [file.name for file in commits.iterdir()] if commits.exists() else []
        return max((int(name) + 1 for name in names if name.isdigit()), default=0)

    def files(self, months: int) -> list[Path]:
        """The files of the first months."""
        return [self.stream / file_name(number) for number in range(months)]

    def keep(self, months: int) -> None:
        """Take back files of later months, which an interrupted run has not come to."""
        wanted = set(self.files(months))
        for file in self.stream.glob("*.parquet"):
            if file not in wanted:
                file.unlink()
