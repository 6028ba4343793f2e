"""A server on loopback that behaves like S3, GCS or Azure Blob Storage, with faults on request."""

from __future__ import annotations

import http.server
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import format_datetime
from itertools import count
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

import attrs

S3, GCS, AZURE = "s3", "gs", "az"
_ABSENT_ONLY: Final = ("If-None-Match", "x-goog-if-generation-match")
"""Headers of a put that must not replace an object."""


_DELETED: Final = "202 Accepted"
_NOT_FOUND: Final = "404 The specified blob does not exist.\r\nx-ms-error-code: BlobNotFound"


@attrs.frozen
class Answer:
    """Status, headers and body."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = attrs.field(factory=dict)
    breaks_off: bool = False
    """Whether the connection is closed in the middle of the body."""


@attrs.frozen
class Stored:
    """One object."""

    data: bytes
    number: int
    modified: datetime

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers that distinguish one state of the object from another."""
        return {
            "ETag": f'"{self.number}"',
            "x-goog-generation": str(self.number),
            "Last-Modified": format_datetime(self.modified, usegmt=True),
        }


@attrs.define
class StandIn:
    """The server's only bucket (or container), and what it does wrong."""

    protocol: str
    port: int = 0
    objects: dict[str, Stored] = attrs.field(factory=dict)
    refused: set[str] = attrs.field(factory=set)
    """Operations that are forbidden: ``get``, ``put``, ``list``, ``delete``."""
    loses: Callable[[str], bool] = lambda _: False
    """Whether to close the connection after an operation, instead of answering."""
    breaks_off: Callable[[str], bool] = lambda _: False
    """Whether to close the connection in the middle of an operation's answer."""
    busy: Callable[[str], bool] = lambda _: False
    """Whether to answer an operation that the server is too busy."""
    conflicts: int = 0
    """How many conditional puts are refused because another one is in progress, with S3's error."""
    seen: list[str] = attrs.field(factory=list)
    """Operations, in order."""
    _numbers: Iterator[int] = attrs.field(factory=lambda: count(1000))
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def url(self, folder: str) -> str:
        """Return the URL of a folder in the bucket."""
        return f"{self.protocol}://bucket/{folder}"

    @property
    def options(self) -> dict[str, Any]:
        """Return the settings ``spark.forebay.storage.*`` that direct the folder's URL here."""
        server = f"http://127.0.0.1:{self.port}"
        if self.protocol == S3:
            keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
            return {"endpoint": server, "region": "us-east-1", **keys}
        if self.protocol == GCS:
            key = {"gcs_base_url": server, "disable_oauth": True}
            key |= {"private_key": "", "private_key_id": "", "client_email": ""}
            return {"google_service_account_key": json.dumps(key), "allow_http": "true"}
        signed = {"azure_storage_account_name": "account", "azure_skip_signature": "true"}
        return {"endpoint": f"{server}/account", **signed}

    def answer(self, method: str, path: str, headers: Any, body: bytes) -> Answer | None:
        """Execute a request; a result of ``None`` loses the response."""
        parts = urlsplit(path)
        asked = {key: values[0] for key, values in parse_qs(parts.query, True).items()}
        name = _name_in(parts.path)
        operation = _operation(method, name)
        with self._lock:
            self.seen.append(operation)
            if operation in self.refused:
                return Answer(403, b"<Error><Code>AccessDenied</Code></Error>")
            if self.busy(operation):
                return Answer(503, b"<Error><Code>SlowDown</Code></Error>")
            done = getattr(self, f"_{operation}")(name, asked, headers, body)
            if self.breaks_off(operation):
                return attrs.evolve(done, breaks_off=True)
            return None if self.loses(operation) else done

    def _put(self, name: str, _: Any, headers: Any, body: bytes) -> Answer:
        conditional = any(headers.get(each) for each in _ABSENT_ONLY)
        if conditional and self.conflicts:
            self.conflicts -= 1
            return Answer(409, b"<Error><Code>ConditionalRequestConflict</Code></Error>")
        if name in self.objects and conditional:
            return Answer(409 if self.protocol == AZURE else 412)
        self.objects[name] = stored = Stored(body, next(self._numbers), datetime.now(UTC))
        return Answer(201 if self.protocol == AZURE else 200, headers=stored.headers)

    def _get(self, name: str, _: Any, headers: Any, __: bytes) -> Answer:
        if (stored := self.objects.get(name)) is None:
            return Answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        wanted = headers.get("x-ms-range") or headers.get("Range")
        if wanted is None:
            return Answer(200, stored.data, stored.headers)
        start, end = map(int, wanted.partition("=")[2].split("-"))
        end = min(end, len(stored.data) - 1)
        if start > end:
            return Answer(416)
        reply = {"Content-Range": f"bytes {start}-{end}/{len(stored.data)}", **stored.headers}
        return Answer(206, stored.data[start : end + 1], reply)

    def _list(self, _: str, asked: dict[str, str], __: Any, ___: bytes) -> Answer:
        prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "")
        after = asked.get("start-after", "")
        names, folders = [], set()
        for name in sorted(self.objects):
            if name.startswith(prefix) and name > after:
                rest = name[len(prefix) :]
                if delimiter and delimiter in rest:
                    folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
                else:
                    names.append(name)
        shown = _azure_list if self.protocol == AZURE else _s3_list
        entries = [(name, self.objects[name]) for name in names]
        text = f"<?xml version='1.0' encoding='utf-8'?>{shown(entries, sorted(folders))}"
        return Answer(200, text.encode(), {"Content-Type": "application/xml"})

    def _delete(self, name: str, _: Any, headers: Any, body: bytes) -> Answer:
        text = body.decode()
        if self.protocol == AZURE and not name:
            return self._delete_batch(text)
        doomed = [name] if name else map(unescape, re.findall("<Key>(.*?)</Key>", text))
        gone = [each for each in doomed if self.objects.pop(each, None) or not name]
        reply = "".join(f"<Deleted><Key>{escape(each)}</Key></Deleted>" for each in gone)
        if name:
            return Answer(204 if gone else 404)
        return Answer(200, f"<DeleteResult>{reply}</DeleteResult>".encode())

    def _delete_batch(self, text: str) -> Answer:
        """Handle Azure's batches: a request and a response for each name, between boundaries."""
        parts = []
        for number, path in enumerate(re.findall("^DELETE (\\S+) HTTP", text, re.MULTILINE)):
            _, _, name = (
                unquote(urlsplit(path).path).removeprefix("/account").lstrip("/").partition("/")
            )
            status = (
                "202 Accepted"
                if self.objects.pop(name, None)
                else "404 The specified blob does not exist."
            )
            parts.append(
                "--batchresponse\r\nContent-Type: application/http\r\n"
                f"Content-ID: {number}\r\n\r\nHTTP/1.1 {status}\r\n"
                + ("x-ms-error-code: BlobNotFound\r\n" if status[0] == "4" else "")
                + "x-ms-version: 2023-11-03\r\n\r\n"
            )
        reply = {"Content-Type": "multipart/mixed; boundary=batchresponse"}
        return Answer(202, ("".join(parts) + "--batchresponse--\r\n").encode(), reply)


def _name_in(path: str) -> str:
    """The object's name, below the bucket."""
    return unquote(path).removeprefix("/account").lstrip("/").partition("/")[2]


def _operation(method: str, name: str) -> str:
    if method == "GET" and not name:
        return "list"
    return {"GET": "get", "HEAD": "get", "PUT": "put"}.get(method, "delete")


def _s3_list(entries: list[tuple[str, Stored]], folders: list[str]) -> str:
    reply = "".join(
        f"<Contents><Key>{escape(name)}</Key><Size>{len(one.data)}</Size>"
        f"<LastModified>{one.modified:%Y-%m-%dT%H:%M:%S.000Z}</LastModified>"
        f'<ETag>"{one.number}"</ETag></Contents>'
        for name, one in entries
    )
    reply += "".join(
        f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in folders
    )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{reply}</ListBucketResult>"


def _azure_list(entries: list[tuple[str, Stored]], folders: list[str]) -> str:
    reply = "".join(
        f"<Blob><Name>{escape(name)}</Name><Properties>"
        f"<Last-Modified>{format_datetime(one.modified, usegmt=True)}</Last-Modified>"
        f"<Content-Length>{len(one.data)}</Content-Length><Content-Type>x/y</Content-Type>"
        f"<Etag>{one.number}</Etag></Properties></Blob>"
        for name, one in entries
    )
    reply += "".join(f"<BlobPrefix><Name>{escape(each)}</Name></BlobPrefix>" for each in folders)
    return f"<EnumerationResults><Blobs>{reply}</Blobs><NextMarker/></EnumerationResults>"


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer leaves in one piece
    stand_in: StandIn

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _respond(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = self.stand_in.answer(self.command, self.path, self.headers, body)
        if answer is None:
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if answer.breaks_off:
            self.close_connection = True
            self.wfile.write(answer.body[: len(answer.body) // 2])
        elif self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _respond


@contextmanager
def stand_in(protocol: str) -> Iterator[StandIn]:
    """Start a server, and stop it in the end."""
    made = StandIn(protocol)
    handler = type("Handler", (_Handler,), {"stand_in": made})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    made.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
