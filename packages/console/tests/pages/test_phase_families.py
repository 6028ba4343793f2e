"""The colours of phases."""

from __future__ import annotations

import pytest

from forebay_console.pages.phase_families import FAMILIES, family_of
from forebay_state_api.metrics.phases import Phase

PHASES = [one.value for one in Phase]


@pytest.mark.parametrize("phase", PHASES)
def test_no_phase_has_the_colour_of_another_one(phase):
    """If a colour is named after phases, it is theirs, and that of their parts."""
    named = [name for name in family_of(phase).title.split(", ") if name in PHASES]
    assert not named or any(phase.startswith(name) for name in named)


def test_every_phase_has_a_family():
    assert {phase for family in FAMILIES for phase in family.phases} == set(PHASES)
