"""Storages of every kind, each empty; S3 is a server on loopback (`s3_options`)."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.storage.opening import open_storage

from .file_systems import dbfs, webhdfs
from .stand_ins import AZURE, GCS, StandIn, stand_in

_numbers = itertools.count()


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


@pytest.fixture(scope="session")
def webhdfs_port() -> Iterator[int]:
    """The port of a stand-in for WebHDFS."""
    with webhdfs() as port:
        yield port


@pytest.fixture(scope="session")
def dbfs_options() -> Iterator[dict[str, Any]]:
    """``spark.forebay.storage.*`` of a stand-in for DBFS."""
    with dbfs() as options:
        yield options


@pytest.fixture
def storage_of(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], ObjectStorage]:
    """An empty storage of a kind."""

    def make(kind: str) -> ObjectStorage:
        if kind == "local":
            return open_storage(tmp_path / "not yet/ä b%41#1")
        if kind == "memory":
            return open_storage(f"memory://{uuid.uuid4()}/below")
        if kind == "webhdfs":
            port = request.getfixturevalue("webhdfs_port")
            return open_storage(f"webhdfs://127.0.0.1:{port}/{next(_numbers)}/st ä%41te")
        if kind == "dbfs":
            options = request.getfixturevalue("dbfs_options")
            return open_storage(f"dbfs:/{next(_numbers)}/st ä%41te", options)
        if kind in {"gcs", "azure"}:
            server: StandIn = request.getfixturevalue(kind)
            return open_storage(server.url(f"{next(_numbers)}/state"), server.options)
        options = request.getfixturevalue("s3_options")
        return open_storage(f"s3://bucket/{next(_numbers)}/state", options)

    return make
