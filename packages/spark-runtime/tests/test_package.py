"""The package's public names, and when it imports them."""

from __future__ import annotations

import subprocess
import sys

import pytest

import forebay_spark_runtime

pytestmark = pytest.mark.long


def test_all_names_are_there():
    for name in forebay_spark_runtime.__all__:
        assert getattr(forebay_spark_runtime, name).__name__ == name


def test_completion_offers_exactly_the_public_names():
    code = "import forebay_spark_runtime as f; print(*dir(f)); f.keyed; print(*dir(f))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = " ".join(sorted(forebay_spark_runtime.__all__))
    assert done.stdout == f"{names}\n" * 2


def test_a_public_name_is_the_same_object_each_time():
    code = (
        "import types, forebay_spark_runtime as f\n"
        "first, again = ([getattr(f, name) for name in f.__all__] for _ in range(2))\n"
        "print(first == again, [one for one in first if isinstance(one, types.ModuleType)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True []\n"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'keyd'"):
        _ = forebay_spark_runtime.keyd


def test_the_plugin_layer_does_not_wait_for_pyspark():
    code = "import sys, forebay_spark_runtime.plugin; print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
