"""The kit on a backend that keeps no files; `tox -e slow` runs all of it, the rest by default."""

from __future__ import annotations

import pytest

from forebay_testing import StateBackendTests
from forebay_testing.backends.forks import ForkTests
from forebay_testing.backends.janitor_pass import ClearingTests
from forebay_testing.backends.rescale import RescaleTests
from forebay_testing.backends.subject import BackendSubject
from forebay_testing.backends.tables import CommitTests, TableTests
from forebay_testing.backends.versions import VerificationTests, VersionTests

from .server_backend import ServerBackend, ServerCells

pytestmark = pytest.mark.kit


class InAServer(BackendSubject):
    @pytest.fixture
    def backend_class(self):
        return ServerBackend

    @pytest.fixture
    def dsn(self, tmp_path):
        return str(tmp_path / "server.sqlite")

    @pytest.fixture
    def backend_options(self, dsn):
        return {"dsn": dsn, "deltas": 6}

    @pytest.fixture
    def stored_cells(self, dsn):
        return ServerCells(dsn)

    @pytest.fixture
    def forget(self):
        ServerBackend.forget()
        yield ServerBackend.forget
        ServerBackend.forget()


class TestWhatIsStored(
    InAServer,
    TableTests,
    CommitTests,
    VersionTests,
    VerificationTests,
    ClearingTests,
    RescaleTests,
    ForkTests,
):
    """The behaviour that differs from files."""

    @pytest.mark.slow
    def test_a_batch_may_be_larger_than_what_a_store_takes_at_once(self, empty):
        """Reads are those of the SQLite backend, whose fault `kit_faults` finds by default."""
        super().test_a_batch_may_be_larger_than_what_a_store_takes_at_once(empty)


@pytest.mark.slow
class TestAll(InAServer, StateBackendTests):
    """The whole kit."""
