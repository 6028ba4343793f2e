"""How property tests draw their examples: the same ones in every run, or fresh ones in a search."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "fixed",
    derandomize=True,
    deadline=None,  # a slow machine is no defect of the code
    suppress_health_check=[HealthCheck.too_slow],
)
# `tox -e slow`, by --hypothesis-profile; a failure comes with the line that repeats it.
settings.register_profile(
    "search", settings.get_profile("fixed"), derandomize=False, print_blob=True
)
settings.load_profile("fixed")
