"""pyspark's daemon, which makes the workers of one executor different from all others.

``PLANT`` names a file with the name of the difference. The executor whose directory is called ``1``
is the different one: executors of ``local-cluster`` run in directories named by their numbers.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from importlib import metadata
from pathlib import Path

from pyspark import daemon, worker


def package_missing():
    _versions("xxhash", metadata.PackageNotFoundError("xxhash"))


def forebay_missing():
    import sys

    for name in [name for name in sys.modules if name.startswith("forebay_")]:
        del sys.modules[name]
    sys.modules["forebay_state_api"] = None


def another_version():
    _versions("forebay-state-api", "0.0.9")


def another_pyarrow():
    _versions("pyarrow", "15.0.0")


def another_python():
    platform.python_version = lambda: "3.9.2"


def a_plugin_missing():
    found = metadata.entry_points

    def without(**wanted):
        return [each for each in found(**wanted) if each.name != "backend-heap"]

    metadata.entry_points = without


def clock_ahead():
    now = time.time
    time.time = lambda: now() + 60


def no_temporary_files():
    tempfile.tempdir = "/nowhere"


def storage_without_list():
    _storage_without("list")


def storage_without_delete():
    _storage_without("delete")


def storage_without_put():
    _storage_without("put")


def another_directory():
    from forebay_state_api.storage import opening

    opened = opening.open_storage
    folder = tempfile.mkdtemp()
    opening.open_storage = lambda url, options=None: opened(folder, options)


def _versions(name, answer):
    version = metadata.version

    def planted(asked):
        if asked != name:
            return version(asked)
        if isinstance(answer, Exception):
            raise answer
        return answer

    metadata.version = planted


def _storage_without(method):
    from forebay_state_api.errors import StorageError
    from forebay_state_api.storage import opening

    kinds = {type(opening.open_storage(tempfile.gettempdir()))}

    def refused(self, *args, **kwargs):
        raise StorageError(f"{method}: access denied")

    for kind in kinds:
        setattr(kind, method, refused)


worker_main = worker.main


def planted_main(infile, outfile):
    if Path.cwd().name == "1":
        kind = Path(os.environ["PLANT"]).read_text()
        if kind:
            globals()[kind]()
    return worker_main(infile, outfile)


if __name__ == "__main__":
    worker.main = planted_main
    daemon.manager()
