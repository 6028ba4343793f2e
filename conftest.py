"""Profiles of hypothesis: the same examples in every run, or a search with fresh ones."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "fixed",
    derandomize=True,
    deadline=None,  # a slow machine is not a defect of the code
    suppress_health_check=[HealthCheck.too_slow],
)
# `tox -e slow` selects it with --hypothesis-profile; a failure prints the line that repeats it.
settings.register_profile(
    "search", settings.get_profile("fixed"), derandomize=False, print_blob=True
)
settings.load_profile("fixed")
