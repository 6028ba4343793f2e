"""Environments of their own, in which tests install wheels as users get them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

UV = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
# Without the tests' own daemon, which is not in these environments.
PLAIN_WORKERS = {
    "PYSPARK_SUBMIT_ARGS": os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell").replace(
        "forked_workers", "pyspark.daemon"
    )
}


def run(*command, check=True, **options):
    """Run a command outside the workspace; return its output."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "VIRTUAL_ENV")
    }
    done = subprocess.run(
        [str(part) for part in command],
        env=environment | PLAIN_WORKERS | options.pop("env", {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        **options,
    )
    assert done.returncode == 0 or not check, done.stdout[-8000:]
    return done.stdout


def link_or_copy(source, target):
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


class Environment:
    """A virtual environment and the wheels to install in it."""

    def __init__(self, folder, wheels=None):
        self.folder = folder
        self.wheels = wheels or folder / "wheels"
        self.python = folder / "venv" / "bin" / "python"
        run(UV, "venv", "--quiet", "--python", sys.executable, folder / "venv")

    def build(self, project):
        """Build the wheel of a project; return its path."""
        known = set(self.wheels.glob("*.whl"))
        run(UV, "build", "--quiet", "--wheel", "--out-dir", self.wheels, project, cwd=self.folder)
        (wheel,) = set(self.wheels.glob("*.whl")) - known
        return wheel

    def install(self, *requirements):
        """Install wheels; uv would take those of an earlier run in a folder of this name."""
        names = {wheel.name.partition("-")[0] for wheel in self.wheels.glob("*.whl")}
        built = [f"--refresh-package={name}" for name in names]
        command = (UV, "pip", "install", "--quiet", "--python", self.python, *built)
        run(*command, "--find-links", self.wheels, *requirements, cwd=self.folder)

    def link(self, name):
        """Install what this environment has, by links: building pyspark takes a minute."""
        site = next(self.folder.glob("venv/lib/python*/site-packages"))
        found = distribution(name)
        for top in {path.parts[0] for path in found.files} - {".."}:
            shutil.copytree(found.locate_file(top), site / top, copy_function=link_or_copy)

    def uninstall(self, name):
        run(UV, "pip", "uninstall", "--quiet", "--python", self.python, name, cwd=self.folder)

    def run(self, *arguments, command="python", first=None, **options):
        """Run a command of the environment, which is first on the path, as if activated.

        If another folder is to be ``first`` on the path, the environment is not on it.
        """
        programs = self.python.parent
        path = {"PATH": f"{first or programs}{os.pathsep}{os.environ['PATH']}"}
        return run(programs / command, *arguments, cwd=self.folder, env=path, **options)
