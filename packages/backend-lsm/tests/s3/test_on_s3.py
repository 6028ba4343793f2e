"""Parts of the kit, compaction and the janitor on an S3 server."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import pytest

from forebay_backend_lsm.backend import LsmBackend
from forebay_backend_lsm.cache import CACHE
from forebay_backend_lsm.compactor import LsmCompactor
from forebay_engine.compaction.local_service import LocalCompactionService
from forebay_engine.versions import Janitor
from forebay_engine.versions.choosing.reader import open_version
from forebay_state_api.contract.compaction_service import CompactionPhase, CompactionService
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.job.descriptors import ListStateDescriptor, ValueStateDescriptor
from forebay_state_api.storage.opening import open_storage
from forebay_testing import ImmediateCompaction, KeyedJob
from forebay_testing.backends.migration import MigrationTests
from forebay_testing.backends.rescale import RescaleTests
from forebay_testing.backends.subject import ENGINES, BackendSubject
from forebay_testing.backends.tables import CommitTests
from forebay_testing.backends.versions import VersionTests

pytestmark = pytest.mark.long

_numbers = itertools.count()


@pytest.fixture
def storage(s3_options: dict[str, Any]) -> ObjectStorage:
    return open_storage(f"s3://bucket/lsm/{next(_numbers)}", s3_options)


class OnS3(BackendSubject):
    @pytest.fixture
    def backend_class(self):
        return LsmBackend

    @pytest.fixture
    def forget(self):
        return CACHE.clear

    @pytest.fixture
    def engine_settings(self):
        return ENGINES["defaults"]

    @pytest.fixture
    def storage(self, s3_options):
        return open_storage(f"s3://bucket/lsm/{next(_numbers)}", s3_options)


@pytest.mark.slow
@pytest.mark.timeout(600)
class TestLsmOnS3(OnS3, CommitTests, MigrationTests, VersionTests, RescaleTests):
    """Run the parts of the kit that look at requests and files, and that make hundreds of them."""


VALUE = ValueStateDescriptor("v", int)
LIST = ListStateDescriptor("l", int)


@pytest.mark.parametrize(
    "kind", [pytest.param(ImmediateCompaction, marks=pytest.mark.slow), LocalCompactionService]
)
def test_batches_compactions_and_janitor(
    storage: ObjectStorage, kind: type[CompactionService]
) -> None:
    service = kind(storage, lambda _: LsmCompactor())
    options = {"max-runs": 4, "block-bytes": 512}
    job = KeyedJob(
        LsmBackend, storage, descriptors=[VALUE, LIST], options=options, compaction=service
    )
    for number in range(14):
        job.scripts([(f"k{number % 3}", [("v.update", number), ("l.add", number)])])
    with open_version(job.storage, uid=job.uid) as reader:
        files = [file for parent in reader.parents for file in parent.files]
        pending = [p for one in reader.manifests for p in one.meta["compaction"]["pending"]]
    assert any("job" in file.meta for file in files)
    for one in pending:
        assert service.poll(one["job"]["id"], 30).phase is CompactionPhase.DONE
    before = len(job.storage.list("data"))
    janitor = Janitor(job.storage, run_key=job._run.key, retention=2, min_age=timedelta(0))
    janitor.sweep(14)
    janitor.sweep(14)
    assert len(job.storage.list("data")) < before
    CACHE.clear()
    written = [list(range(key, 14, 3)) for key in range(3)]
    assert job.peek_all(["k0", "k1", "k2"]) == [[numbers[-1], numbers] for numbers in written]
    service.close()
