"""Starts an S3 server on loopback."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def s3_options() -> Iterator[dict[str, Any]]:
    """Yield ``spark.forebay.storage.*`` for a server that has the bucket ``bucket``."""
    import boto3
    from moto.server import ThreadedMotoServer

    # Use no profile, proxy or credentials of this machine.
    kept = {name: os.environ.pop(name) for name in [*os.environ] if name.startswith("AWS_")}
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server.start()
    _, port = server.get_host_and_port()
    endpoint = f"http://127.0.0.1:{port}"
    secrets = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **secrets).create_bucket(
        Bucket="bucket"
    )
    yield {"endpoint": endpoint, "region": "us-east-1", **secrets, "retry-budget": 5.0}
    server.stop()
    os.environ.update(kept)
