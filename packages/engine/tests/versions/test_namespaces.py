"""Equal namespaces have one form, with one encoding."""

import pytest

from forebay_engine.versions.format.namespaces import canonical_namespace
from forebay_testing.backends.kinds import EQUAL


@pytest.mark.parametrize("equal", EQUAL, ids=repr)
def test_equal_namespaces_have_one_form(equal):
    one, other = map(canonical_namespace, equal)
    assert one == equal[0]
    assert repr(one) == repr(other)


@pytest.mark.parametrize("namespace", [None, "w", 7, b"w", 0.1, ("w", 1.5), (None, b"")], ids=repr)
def test_others_stay_as_they_are(namespace):
    assert repr(canonical_namespace(namespace)) == repr(namespace)
