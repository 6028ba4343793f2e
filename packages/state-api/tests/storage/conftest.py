"""Storages of every kind, each empty; S3 is a server on loopback."""

from __future__ import annotations

import itertools
import logging
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from forebay_state_api._storage.fsspec import FsspecStorage
from forebay_state_api.storage import ObjectStorage, open_storage

from .stand_ins import AZURE, GCS, StandIn, stand_in

_numbers = itertools.count()


@pytest.fixture(scope="session")
def s3_options() -> Iterator[dict[str, Any]]:
    """``spark.forebay.storage.*`` of a server that has the bucket ``bucket``."""
    import boto3
    from moto.server import ThreadedMotoServer

    # No profile, no proxy and no other credentials of the machine's.
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


@pytest.fixture(scope="session")
def gcs() -> Iterator[StandIn]:
    """A stand-in for Google Cloud Storage."""
    with stand_in(GCS) as server:
        yield server


@pytest.fixture(scope="session")
def azure() -> Iterator[StandIn]:
    """A stand-in for Azure Blob Storage."""
    with stand_in(AZURE) as server:
        yield server


def fsspec_memory() -> FsspecStorage:
    root = f"/forebay-{uuid.uuid4()}"
    return FsspecStorage.on(MemoryFileSystem(), root, f"fsspec-memory://{root}")


@pytest.fixture
def storage_of(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], ObjectStorage]:
    """An empty storage of a kind."""

    def make(kind: str) -> ObjectStorage:
        if kind == "local":
            return open_storage(tmp_path / "not yet/ä b%41#1")
        if kind == "memory":
            return open_storage(f"memory://{uuid.uuid4()}/below")
        if kind == "fsspec-memory":
            return fsspec_memory()
        if kind == "fsspec-local":
            directory = str(tmp_path / "fsspec ä")
            return FsspecStorage.on(LocalFileSystem(), directory, f"fsspec:{directory}")
        if kind in {"gcs", "azure"}:
            server: StandIn = request.getfixturevalue(kind)
            return open_storage(server.url(f"{next(_numbers)}/state"), server.options)
        options = request.getfixturevalue("s3_options")
        return open_storage(f"s3://bucket/{next(_numbers)}/state", options)

    return make
