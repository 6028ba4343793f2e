"""Real failures of real storages: the error's text, and whether the request was retried."""

from __future__ import annotations

import http.server
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from forebay_state_api.contract.object_storage import ObjectNotFoundError, ObjectStorage
from forebay_state_api.errors import StorageError
from forebay_state_api.storage.opening import open_storage

SECRETS = {"region": "us-east-1", "aws_access_key_id": "a", "aws_secret_access_key": "b"}


def in_another_process(code: str, *arguments: object, within: Sequence[str] = ()) -> str:
    """Return what a process with its own limits and user prints.

    ``within`` is a command that runs the command that follows it.
    """
    prelude = "import sys\nfrom forebay_state_api.storage.opening import open_storage\n"
    prelude += "from forebay_state_api.errors import StorageError\n"
    prelude += "open_storage('/')\n"  # another user may not read the sources
    command = [*within, sys.executable, "-c", prelude + code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


PUT = """
try:
    open_storage(sys.argv[1]).put("a/b", b"x" * 100_000)
except StorageError as error:
    print(error)
"""
PUTS_ON_A_SMALL_DISK = """
import pathlib
for put in ("put", "put_if_absent"):
    storage = open_storage(sys.argv[1])
    try:
        getattr(storage, put)("a/b", b"x" * 100_000)
    except StorageError as error:
        print(error)
    print([path.name for path in pathlib.Path(sys.argv[1]).rglob("*") if path.is_file()])
    storage.put("a/small", b"x" * 100)
    storage.delete(["a/small"])
"""


def own_disk(folder: Path) -> list[str]:
    """A command that runs others with a disk of 64 KiB at ``folder``, which only they see."""
    mount = 'mount -t tmpfs -o size=64k none "$0" && exec "$@"'
    return ["unshare", "--mount", "--map-root-user", "sh", "-c", mount, str(folder)]


def can_have_own_disk(folder: Path) -> bool:
    try:
        return subprocess.run([*own_disk(folder), "true"], check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.long
def test_a_full_disk(tmp_path: Path) -> None:
    if not can_have_own_disk(tmp_path):
        pytest.skip("this user may not mount a disk of its own")
    said = in_another_process(PUTS_ON_A_SMALL_DISK, tmp_path, within=own_disk(tmp_path))
    *_, nothing = lines = said.splitlines()
    assert len(lines) == 4
    for message in lines[::2]:
        assert f"could not write 'a/b' in {tmp_path}" in message
        assert "No space left on device" in message
        assert "make room on the volume, or move the state directory to a larger one" in message
        assert "tried" not in message
    assert lines[1] == nothing == "[]"


@pytest.mark.long
def test_a_limit_of_file_sizes(tmp_path: Path) -> None:
    limit = "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))\n"
    said = in_another_process(limit + PUT, tmp_path)
    assert "could not write 'a/b' in " + str(tmp_path) in said
    assert "ulimit -f" in said
    assert "tried" not in said
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_permission_denied_to_another_user(tmp_path: Path) -> None:
    open_storage(tmp_path).put("a/b", b"")
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    become = "import os\nos.setuid(65534)\n"
    said = in_another_process(become + PUT, tmp_path)
    assert f"could not write 'a/b' in {tmp_path}" in said
    assert "let the user that the executors run as read and write there" in said


def test_a_directory_that_is_a_file(tmp_path: Path) -> None:
    storage = open_storage(tmp_path)
    storage.put("a", b"")
    with pytest.raises(StorageError, match=r"'a/b'.*Not a directory"):
        storage.put("a/b", b"")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def s3(port: int, **options: Any) -> ObjectStorage:
    endpoint = f"http://127.0.0.1:{port}"
    return open_storage("s3://bucket/state", {"endpoint": endpoint, **SECRETS, **options})


@pytest.mark.long
def test_nobody_listens() -> None:
    started = time.monotonic()
    with pytest.raises(StorageError, match=r"could not read 'a'.*check the address"):
        s3(free_port(), **{"retry-budget": 0.3}).get("a")
    assert time.monotonic() - started < 60


@pytest.mark.long
def test_somebody_listens_and_never_answers() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        storage = s3(
            silent.getsockname()[1],
            **{"retry-budget": 0.2, "request-timeout": 0.1},
        )
        with pytest.raises(StorageError, match="could not read 'a'"):
            storage.get("a")


class Scripted(http.server.BaseHTTPRequestHandler):
    """Answers with the statuses of `answers`, then with 200."""

    answers: list[int]
    seen: list[str]

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def answer(self) -> None:
        self.seen.append(self.command)
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status = self.answers.pop(0) if self.answers else 200
        content = b"content"
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_PUT = do_HEAD = do_POST = answer


@pytest.fixture
def scripted() -> Iterator[Callable[..., tuple[int, list[str]]]]:
    servers = []

    def start(*answers: int) -> tuple[int, list[str]]:
        seen: list[str] = []
        handler = type("Handler", (Scripted,), {"answers": [*answers], "seen": seen})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return server.server_port, seen

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.long
@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_store_that_is_overloaded_and_recovers(scripted: Any, status: int) -> None:
    port, seen = scripted(status, status)
    storage = s3(port, **{"retry-budget": 20})
    assert storage.get("a") == b"content"
    assert len(seen) == 3


@pytest.mark.long
def test_put_if_absent_is_tried_again_as_well(scripted: Any) -> None:
    port, seen = scripted(503, 503)
    assert s3(port, **{"retry-budget": 20}).put_if_absent("a", b"content") is True
    assert len(seen) == 3


@pytest.mark.long
def test_a_store_that_stays_overloaded(scripted: Any) -> None:
    port, _ = scripted(*[503] * 1_000)
    with pytest.raises(StorageError, match=r"'a' in s3://bucket/state.*503"):
        s3(port, **{"retry-budget": 0.3}).get("a")


def test_credentials_that_are_refused(scripted: Any) -> None:
    port, seen = scripted(*[403] * 5)
    with pytest.raises(StorageError, match="check the credentials"):
        s3(port).put("a", b"")
    assert len(seen) == 1


def test_an_object_that_is_not_there_is_not_asked_for_again(scripted: Any) -> None:
    port, seen = scripted(*[404] * 5)
    with pytest.raises(ObjectNotFoundError, match="'a'"):
        s3(port).get("a")
    assert len(seen) == 1


def test_a_bucket_that_does_not_exist(s3_options: dict[str, Any]) -> None:
    storage = open_storage("s3://other-bucket/state", s3_options)
    with pytest.raises(StorageError, match="name of the bucket"):
        storage.list()
    with pytest.raises(StorageError, match=r"could not write 'a'.*s3://other-bucket/state"):
        storage.put("a", b"")
