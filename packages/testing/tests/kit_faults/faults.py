"""All planted faults, by name."""

from . import (  # noqa: F401 - they plant
    column_faults,
    expiry_faults,
    read_faults,
    version_faults,
    write_faults,
)
from .planting import FAULTS

__all__ = ["FAULTS"]
