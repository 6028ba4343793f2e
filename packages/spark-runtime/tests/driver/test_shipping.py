"""Jobs for workers that may lack Forebay."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
from pyspark import cloudpickle

from forebay_spark_runtime.driver.shipping import shipped
from forebay_state_api.errors import ConfigurationError

pytestmark = pytest.mark.long

WORKER = textwrap.dedent(
    """
    import importlib.abc, sys

    class Missing(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name.partition(".")[0] in sys.argv[1:]:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Missing())
    from pyspark import cloudpickle
    run = cloudpickle.loads(sys.stdin.buffer.read())
    try:
        print(list(run(iter([1, 2]))))
    except ModuleNotFoundError as error:
        print(error)
    """
)


class Job:
    """Needs Forebay when it is unpickled."""

    def __init__(self):
        self.kind = ConfigurationError

    def __call__(self, batches):
        for batch in batches:
            yield batch, self.kind.__name__


@pytest.fixture
def run_without():
    def run(*modules):
        module = sys.modules[__name__]
        cloudpickle.register_pickle_by_value(module)
        try:
            sent = cloudpickle.dumps(shipped(Job(), "operator 'u'"))
        finally:
            cloudpickle.unregister_pickle_by_value(module)
        worker = [sys.executable, "-c", WORKER, *modules]
        env = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
        done = subprocess.run(worker, input=sent, capture_output=True, check=True, env=env)
        return done.stdout.decode()

    return run


def test_a_job_runs_where_forebay_is(run_without):
    assert run_without() == "[(1, 'ConfigurationError'), (2, 'ConfigurationError')]\n"


def test_a_worker_without_forebay_says_what_to_install_where(run_without):
    told = run_without("forebay_state_api", "forebay_spark_runtime")
    assert told.startswith("operator 'u': forebay_state_api is not installed for the Python that")
    assert f"{sys.executable}. Install forebay-state-api there" in told
    assert "with Spark Connect on the server" in told
