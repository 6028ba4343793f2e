"""Limits of connections, which hold before anybody has shown a token."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator

import pytest
import uvicorn

from forebay_console import connections
from forebay_console.connections import LimitedConnection

PATIENCE_S = 100.0
HALF = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "


async def answer(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"here"})


@pytest.fixture
def port() -> Iterator[int]:
    bound = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(answer, http=LimitedConnection, lifespan="off", log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    yield bound.getsockname()[1]
    server.should_exit = True
    thread.join()
    bound.close()


@pytest.fixture
def half(port):
    """Return a function that opens a connection, and sends half a request."""
    with contextlib.ExitStack() as opened:

        def half() -> socket.socket:
            made = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
            made.sendall(HALF)
            return opened.enter_context(made)

        yield half


def view(port: int) -> int:
    asked = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    with contextlib.closing(asked):
        asked.request("GET", "/")
        return asked.getresponse().status


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(100) == b""
    except ConnectionResetError:
        return True


def test_headers_that_do_not_come_end_the_connection(port, half, monkeypatch):
    with monkeypatch.context() as impatient:
        impatient.setattr(connections, "REQUEST_S", 0.05)
        assert is_closed(half())
    assert view(port) == 200


def test_a_second_request_has_a_limit_too(port, monkeypatch):
    made = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    with made:
        made.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        shown = b""
        while not shown.endswith(b"0\r\n\r\n"):  # the end of a body in chunks
            shown += made.recv(10_000)
        monkeypatch.setattr(connections, "REQUEST_S", 0.05)
        made.sendall(HALF)
        assert is_closed(made)


def test_a_new_connection_of_an_address_takes_the_place_of_one_that_waits(port, half, monkeypatch):
    monkeypatch.setattr(connections, "MOST_OF_PEER", 3)
    made = [half() for _ in range(3)]
    assert view(port) == 200
    assert is_closed(made[0])
    made[2].sendall(b"y\r\n\r\n")
    assert made[2].recv(100).startswith(b"HTTP/1.1 200"), "the younger ones go on"
