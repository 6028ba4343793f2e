"""The command line: what it refuses, and a server that runs."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from forebay_console.command import console
from forebay_state_api.errors import ConfigurationError

pytestmark = pytest.mark.long

FOREBAY = "from forebay_cli.main import main; main()"


def refused(*options: str) -> str:
    result = CliRunner().invoke(console, ["--port", "0", *options])
    assert isinstance(result.exception, ConfigurationError), result.output
    return str(result.exception)


@pytest.fixture
def token(tmp_path):
    file = tmp_path / "token"
    file.write_text("a-token-of-24-characters\n")
    return str(file)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.com"])
def test_beyond_loopback_a_token_is_required(tmp_path, host):
    assert "--token-file" in refused("--state-dir", str(tmp_path), "--host", host)


def test_beyond_loopback_tls_is_required(tmp_path, token):
    options = ["--state-dir", str(tmp_path), "--host", "0.0.0.0", "--token-file", token]
    assert "--plain-http" in refused(*options)


@pytest.mark.parametrize("refresh", ["nan", "0.1", "1e9"])
def test_a_refresh_is_bounded(tmp_path, refresh):
    assert "refresh = " in refused("--state-dir", str(tmp_path / "none"), "--refresh", refresh)


def test_a_certificate_needs_its_key(tmp_path, token):
    options = ["--state-dir", str(tmp_path), "--tls-cert", token]
    assert "--tls-key" in refused(*options)


def test_a_token_that_can_be_guessed_is_refused(tmp_path):
    file = tmp_path / "token"
    file.write_text("secret\n")
    message = refused("--state-dir", str(tmp_path), "--token-file", str(file))
    assert "6 characters" in message
    assert "secret" not in message


def test_a_directory_that_does_not_exist_is_an_error(tmp_path):
    assert "there is no directory" in refused("--state-dir", str(tmp_path / "nothing"))


def test_a_port_that_is_taken_is_an_error(state_dir):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = CliRunner().invoke(console, ["--state-dir", str(state_dir), "--port", port])
    assert f"cannot listen on 127.0.0.1:{port}" in str(result.exception)


class running:
    """The command in a process of its own; the block gets its address."""

    def __init__(self, state_dir, folder, *options: str):
        command = ["console", "--state-dir", str(state_dir), "--port", "0", *options]
        self._log = (folder / "log").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-c", FOREBAY, *command],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "error"},
        )

    def __enter__(self) -> str:
        line = self._process.stdout.readline()
        found = re.search(r"https?://\S+", line)
        self._log.seek(0)
        assert found, self._log.read()
        return found[0]

    def __exit__(self, *_):
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(100)
        self._process.stdout.close()
        self._log.seek(0)
        errors = self._log.read()
        self._log.close()
        assert "Traceback" not in errors, errors


def test_the_server_answers_with_tls_and_a_token(state_dir, tmp_path, token):
    trustme = pytest.importorskip("trustme")
    ca = trustme.CA()
    issued = ca.issue_cert("127.0.0.1")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued.private_key_pem.write_to_path(key)
    for pem in issued.cert_chain_pems:
        pem.write_to_path(cert, append=True)
    options = ["--tls-cert", str(cert), "--tls-key", str(key), "--token-file", token]
    trusted = ssl.create_default_context(cadata=ca.cert_pem.bytes().decode())
    with running(state_dir, tmp_path, *options) as url:
        assert url.startswith("https://127.0.0.1:")
        asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token_in(token)}"})
        with urllib.request.urlopen(asked, context=trusted, timeout=100) as answer:
            assert b"visits" in answer.read()
            assert "uvicorn" not in str(answer.headers)


def test_behind_a_proxy_beyond_loopback_the_cookie_is_for_tls_alone(state_dir, token, monkeypatch):
    """Without a process of its own: the server gets the pages and where to listen."""
    served = []
    monkeypatch.setattr("forebay_console.server.serve", lambda *given: served.append(given))
    options = ["--host", "0.0.0.0", "--plain-http", "--token-file", token]
    result = CliRunner().invoke(console, ["--state-dir", str(state_dir), "--port", "0", *options])
    assert result.exception is None
    ((app, listening, _),) = served
    assert listening.host == "0.0.0.0"
    answer = asyncio.run(posted(app, "/login", {"token": token_in(token)}))
    assert answer.status_code == 303
    assert "Secure" in answer.headers["set-cookie"]


async def posted(app, path: str, form: dict[str, str]) -> httpx.Response:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return await client.post(path, data=form)


def token_in(file: str) -> str:
    return Path(file).read_text().strip()
