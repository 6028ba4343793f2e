"""The backend passes the conformance kit."""

from __future__ import annotations

import pytest
from forebay_backend_acme.backend import AcmeBackend

from forebay_testing import StateBackendTests


class TestAcmeBackend(StateBackendTests):
    @pytest.fixture
    def backend_class(self):
        return AcmeBackend

    # Override `forget` when the backend keeps copies between batches, `storage` to test on another
    # store, and `backend_options` for other settings. The attribute `unclaimed` lists rows whose
    # promises the backend does not keep, each with the reason.
