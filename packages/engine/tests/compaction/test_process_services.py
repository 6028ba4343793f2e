"""The compaction services of a process."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from forebay_engine.compaction import process_services as module
from forebay_engine.compaction.local_service import LocalCompactionService
from forebay_engine.compaction.process_services import close_services, service_of
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import ConfigurationError, UnknownPluginError
from forebay_state_api.storage.opening import open_storage


@pytest.fixture
def storage() -> Iterator[ObjectStorage]:
    yield open_storage(f"memory://{uuid.uuid4().hex}")
    close_services()


def test_one_service_per_state_directory(storage: ObjectStorage) -> None:
    service = service_of("local", storage)
    assert isinstance(service, LocalCompactionService)
    assert service_of("local", open_storage(storage.url)) is service
    assert service_of("local", open_storage(f"memory://{uuid.uuid4().hex}")) is not service
    other = service_of("local", storage, storage_options={"aws_region": "eu-west-1"})
    assert other is not service


def test_a_forked_process_has_services_of_its_own(
    storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = service_of("local", storage)
    with monkeypatch.context() as child:
        child.setattr(module.os, "getpid", lambda: -1)
        assert service_of("local", storage) is not service
        close_services()
    assert service_of("local", storage) is service


def test_a_closed_service_is_opened_anew(storage: ObjectStorage) -> None:
    service = service_of("local", storage)
    close_services()
    assert service_of("local", storage) is not service


def test_what_cannot_be_opened(storage: ObjectStorage) -> None:
    with pytest.raises(UnknownPluginError, match="locla"):
        service_of("locla", storage)
    with pytest.raises(ConfigurationError, match="no settings"):
        service_of("local", storage, {"address": "x"})
