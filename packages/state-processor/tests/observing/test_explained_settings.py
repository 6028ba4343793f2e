"""The settings that `forebay explain` names exist."""

import inspect
import re

from forebay_state_api.plugins import plugins
from forebay_state_api.settings import resolve_settings
from forebay_state_processor.observing import causes


def test_they_are_settings_of_the_installed_packages():
    installed = {**plugins().compaction_services(), **plugins().backends()}
    known = {row.key for row in resolve_settings({}, backends=installed).explain()}
    named = set(re.findall(r"spark\.forebay\.[\w.-]*\w", inspect.getsource(causes)))
    assert named <= known
    assert len(named) >= 5
