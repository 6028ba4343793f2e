"""All planted faults, by name."""

from . import expiry_faults, read_faults, version_faults, write_faults  # noqa: F401 - they plant
from .planting import FAULTS

__all__ = ["FAULTS"]
