"""All planted faults, by name."""

from . import (  # noqa: F401 - they plant
    column_faults,
    expiry_faults,
    limit_faults,
    missed_faults,
    name_faults,
    read_faults,
    result_faults,
    value_faults,
    version_faults,
    write_faults,
)
from .planting import FAULTS, MISSED

__all__ = ["FAULTS", "MISSED"]
