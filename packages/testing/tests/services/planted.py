"""Each planted fault of a service in the row that must fail; `test_services` runs this file."""

from __future__ import annotations

import pytest

from forebay_testing.services import CompactionServiceTests
from forebay_testing.services import rows as kit

from .service_faults import FAULTS

# A row that waits for a fault's thread in vain need not wait for long.
kit._PATIENCE_S = 2.0


def planted(name):
    broken, row, case = FAULTS[name]

    class OfFault:
        @pytest.fixture
        def service_class(self):
            return broken

    fixtures = {n: v for n, v in vars(CompactionServiceTests).items() if not n.startswith("test_")}
    chosen = {row.__name__: row}
    members = {**fixtures, **chosen, "wanted": case, "__module__": __name__}
    base = type("Row", (), members)
    return type(f"Test{name}", (OfFault, base), {"__module__": __name__})


for _name in FAULTS:
    globals()[f"Test{_name}"] = planted(_name)
