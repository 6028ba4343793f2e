"""Stand-ins for the servers of WebHDFS and DBFS: a tree of files in memory, behind either protocol.

Neither renames a file over another one: WebHDFS answers ``false``, DBFS with an error.
"""

from __future__ import annotations

import base64
import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import attrs
import pytest
import requests
from requests.adapters import BaseAdapter

ROOT: Final = "/"


class MissingError(Exception):
    """There is no such path."""


class ExistsError(Exception):
    """There is such a path."""


@attrs.define
class File:
    """One file."""

    data: bytes = b""
    modified_s: float = attrs.field(factory=time.time)


@attrs.define
class Tree:
    """Files and folders by their paths. One request at a time."""

    files: dict[str, File] = attrs.field(factory=dict)
    folders: set[str] = attrs.field(factory=lambda: {ROOT})
    lock: threading.Lock = attrs.field(factory=threading.Lock)

    def make_folder(self, path: str) -> None:
        """Create a folder and its parents."""
        parts = path.strip("/").split("/")
        above = ["/" + "/".join(parts[: i + 1]) for i in range(len(parts))]
        if any(each in self.files for each in above):
            raise ExistsError(path)
        self.folders.update(above)

    def create(self, path: str, *, overwrite: bool) -> File:
        """Create an empty file."""
        if path in self.folders or (path in self.files and not overwrite):
            raise ExistsError(path)
        self.make_folder(_parent(path))
        self.files[path] = File()
        return self.files[path]

    def children(self, path: str) -> list[str]:
        """Return the paths directly below a folder."""
        return sorted(p for p in {*self.files, *self.folders} if p != ROOT and _parent(p) == path)

    def check(self, path: str) -> None:
        """Raise unless the path exists."""
        if path not in self.files and path not in self.folders:
            raise MissingError(path)

    def remove(self, path: str, *, recursive: bool) -> bool:
        """Remove a file or folder; return whether there was one."""
        if path in self.folders:
            below = self.children(path)
            if below and not recursive:
                raise ExistsError(path)
            for each in below:
                self.remove(each, recursive=True)
            self.folders.discard(path)
            return True
        return self.files.pop(path, None) is not None

    def rename(self, source: str, target: str) -> None:
        """Rename a file, not over another one."""
        self.check(source)
        if target in self.files or target in self.folders:
            raise ExistsError(target)
        if _parent(target) not in self.folders:
            raise MissingError(target)
        self.files[target] = self.files.pop(source)


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or ROOT


class _WebHdfs(http.server.BaseHTTPRequestHandler):
    """Answers ``/webhdfs/v1/<path>?op=…``."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    tree: Tree

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _respond(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        asked = {key: values[0] for key, values in parse_qs(parts.query, True).items()}
        path = unquote(parts.path).removeprefix("/webhdfs/v1").rstrip("/") or ROOT
        operation = getattr(self, f"_{asked['op'].lower()}")
        try:
            with self.tree.lock:
                answer = operation(path, asked, body)
        except MissingError as error:
            self._send(404, _remote("FileNotFoundException", f"File {error} does not exist."))
        except ExistsError as error:
            self._send(403, _remote("FileAlreadyExistsException", f"{error} exists."))
        else:
            if answer is not None:
                self._send(*answer)

    do_GET = do_PUT = do_POST = do_DELETE = _respond

    def _send(self, status: int, body: object = b"", **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _redirected(self, asked: dict[str, str]) -> bool:
        """Redirect the client to the node that has the data, which is this one."""
        if "node" in asked:
            return False
        host = self.headers["Host"]
        self._send(307, Location=f"http://{host}{self.path}&node=1")
        return True

    def _mkdirs(self, path: str, _: Any, __: bytes) -> Any:
        self.tree.make_folder(path)
        return 200, {"boolean": True}

    def _create(self, path: str, asked: dict[str, str], body: bytes) -> Any:
        if self._redirected(asked):
            return None
        self.tree.create(path, overwrite=asked.get("overwrite") == "true").data = body
        return 201, b""

    def _append(self, path: str, asked: dict[str, str], body: bytes) -> Any:
        if self._redirected(asked):
            return None
        self.tree.files[path].data += body
        return 200, b""

    def _open(self, path: str, asked: dict[str, str], _: bytes) -> Any:
        if path not in self.tree.files:
            raise MissingError(path)
        if self._redirected(asked):
            return None
        start = int(asked.get("offset", 0))
        data = self.tree.files[path].data
        return 200, data[start : start + int(asked.get("length", len(data)))]

    def _rename(self, path: str, asked: dict[str, str], _: bytes) -> Any:
        try:
            self.tree.rename(path, asked["destination"])
        except (ExistsError, MissingError):
            return 200, {"boolean": False}
        return 200, {"boolean": True}

    def _delete(self, path: str, asked: dict[str, str], _: bytes) -> Any:
        recursive = asked.get("recursive") == "true"
        return 200, {"boolean": self.tree.remove(path, recursive=recursive)}

    def _getfilestatus(self, path: str, _: Any, __: bytes) -> Any:
        self.tree.check(path)
        return 200, {"FileStatus": self._status(path, "")}

    def _liststatus(self, path: str, _: Any, __: bytes) -> Any:
        self.tree.check(path)
        below = [path] if path in self.tree.files else self.tree.children(path)
        reply = [self._status(each, each.removeprefix(path).lstrip("/")) for each in below]
        return 200, {"FileStatuses": {"FileStatus": reply}}

    def _status(self, path: str, suffix: str) -> dict[str, Any]:
        file = self.tree.files.get(path)
        reply = {"pathSuffix": suffix, "type": "DIRECTORY", "length": 0, "modificationTime": 0}
        if file is not None:
            reply |= {"type": "FILE", "length": len(file.data)}
            reply |= {"modificationTime": int(file.modified_s * 1e3)}
        return reply


def _remote(kind: str, message: str) -> object:
    return {"RemoteException": {"exception": kind, "message": message}}


@contextmanager
def webhdfs() -> Iterator[int]:
    """Start a server; gives its port."""
    handler = type("Handler", (_WebHdfs,), {"tree": Tree()})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Dbfs(BaseAdapter):
    """Answers ``https://<instance>/api/2.0/dbfs/<endpoint>`` within the process, without TLS."""

    _codes: Final = {
        MissingError: "RESOURCE_DOES_NOT_EXIST",
        ExistsError: "RESOURCE_ALREADY_EXISTS",
    }

    def __init__(self) -> None:
        super().__init__()
        self._tree = Tree()
        self._handles: dict[int, File] = {}
        self._numbers = count(1)

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        endpoint = str(request.url).rpartition("/")[2].replace("-", "_")
        assert request.body is not None
        answer = requests.Response()
        answer.request, answer.url = request, str(request.url)
        try:
            with self._tree.lock:
                reply = getattr(self, f"_{endpoint}")(**json.loads(request.body))
            answer.status_code = 200
        except MissingError as error:
            answer.status_code = 404
            reply = {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": str(error)}
        except ExistsError as error:
            answer.status_code = 400
            reply = {"error_code": "RESOURCE_ALREADY_EXISTS", "message": str(error)}
        answer._content = json.dumps(reply or {}).encode()
        return answer

    def _list(self, path: str) -> Any:
        path = path.rstrip("/") or ROOT
        self._tree.check(path)
        found = [path] if path in self._tree.files else self._tree.children(path)
        return {"files": [self._told(each) for each in found]} if found else {}

    def _get_status(self, path: str) -> Any:
        self._tree.check(path)
        return self._told(path)

    def _told(self, path: str) -> dict[str, Any]:
        file = self._tree.files.get(path)
        size = 0 if file is None else len(file.data)
        return {"path": path, "is_dir": file is None, "file_size": size}

    def _mkdirs(self, path: str) -> None:
        self._tree.make_folder(path)

    def _create(self, path: str, *, overwrite: bool) -> Any:
        handle = next(self._numbers)
        self._handles[handle] = self._tree.create(path, overwrite=overwrite)
        return {"handle": handle}

    def _add_block(self, handle: int, data: str) -> None:
        self._handles[handle].data += base64.b64decode(data)

    def _close(self, handle: int) -> None:
        del self._handles[handle]

    def _read(self, path: str, offset: int, length: int) -> Any:
        if path not in self._tree.files:
            raise MissingError(path)
        data = self._tree.files[path].data[offset : offset + length]
        return {"bytes_read": len(data), "data": base64.b64encode(data).decode()}

    def _delete(self, path: str, *, recursive: bool) -> None:
        self._tree.remove(path, recursive=recursive)

    def _move(self, source_path: str, destination_path: str) -> None:
        self._tree.rename(source_path, destination_path)


@contextmanager
def dbfs() -> Iterator[dict[str, str]]:
    """Let DBFS of an instance be answered here; gives the options that lead to it."""
    server = _Dbfs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fsspec.implementations.dbfs.HTTPAdapter", lambda **_: server)
        yield {"instance": "stand-in.invalid", "token": "t"}
