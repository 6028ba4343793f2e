"""The addresses on which the console listens, and the protection that each needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay_console import server
from forebay_console.connections import LimitedConnection
from forebay_console.server import Listening
from forebay_state_api.errors import ConfigurationError

CERTIFIED = {"tls_cert": Path("cert.pem"), "tls_key": Path("key.pem")}


@pytest.mark.parametrize(
    ("host", "how", "behind_tls"),
    [
        ("127.0.0.1", {}, False),
        ("127.0.0.1", {"plain_http": True}, False),
        ("localhost", {"plain_http": True}, False),
        ("0.0.0.0", {"plain_http": True}, True),
        ("10.0.0.5", {"plain_http": True}, True),
        ("0.0.0.0", CERTIFIED, False),
        ("0.0.0.0", {**CERTIFIED, "plain_http": True}, False),
    ],
)
def test_plain_http_beyond_loopback_has_a_proxy_with_tls_before_it(host, how, behind_tls):
    assert Listening(host=host, port=0, **how).behind_tls is behind_tls


def test_a_certificate_that_is_none_is_refused_before_an_address_is_shown(tmp_path):
    file = tmp_path / "cert.pem"
    file.write_bytes(b"no certificate")
    announced = []
    certified = Listening(host="127.0.0.1", port=0, tls_cert=file, tls_key=file)
    with pytest.raises(ConfigurationError, match=f"--tls-cert {file} and .* cannot be used"):
        server.serve(None, certified, announced.append)
    assert announced == []


def test_its_connections_have_limits(monkeypatch):
    configured = []

    class Server(server.uvicorn.Server):
        def run(self, sockets):
            configured.append(self.config)

    monkeypatch.setattr(server.uvicorn, "Server", Server)
    server.serve(None, Listening(host="127.0.0.1", port=0), lambda _: None)
    assert [one.http for one in configured] == [LimitedConnection]
