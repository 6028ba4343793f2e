"""Lets workers that Spark starts one by one call it back before they import pyspark.

Spark waits ten seconds for such a worker, and no setting changes that; on a busy machine the
imports take longer. ``foreachBatch`` under Spark Connect has such workers, and so have streams of
Python data sources. Other workers are forked by a daemon, for which Spark waits.
"""

from __future__ import annotations

import os

_NAMES = ("SOCK_PATH", "PORT", "SECRET")


def _called_back(path, port, secret):
    """Return the file and the socket of the connection, as ``local_connect_and_auth`` does."""
    import socket
    import struct

    if path:
        connected = socket.socket(socket.AF_UNIX)
        connected.connect(path)
    else:
        connected = socket.create_connection(("127.0.0.1", int(port)))
    file = connected.makefile("rwb", 65536)
    if secret:
        file.write(struct.pack("!i", len(secret)) + secret.encode())
        file.flush()
        (size,) = struct.unpack("!i", file.read(4))
        assert file.read(size) == b"ok"
    return file, connected


def _call_back():
    path, port, secret = (os.environ.get(f"PYTHON_WORKER_FACTORY_{name}") for name in _NAMES)
    if path or port:  # the daemon has neither
        made = _called_back(path, port, secret)
        import pyspark.util

        pyspark.util.local_connect_and_auth = lambda *_: made


_call_back()
