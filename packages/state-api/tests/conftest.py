"""How the tests draw their examples."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A slow machine is no defect of the code.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
