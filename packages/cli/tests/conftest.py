"""State directories as jobs leave them, and the command line on them."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from forebay_engine.versions import operator_folder
from forebay_state_api.storage.opening import open_storage
from forebay_testing.committing_job import CommittingJob


@pytest.fixture
def make_committing_job(tmp_path):
    """Return a function that makes jobs of an operator in the state directory `tmp_path`."""

    def make(query="clicks", uid="visits", **how):
        return CommittingJob(open_storage(tmp_path).child(operator_folder(query, uid)), **how)

    return make


@pytest.fixture
def invoke():
    """Return a function that runs one command, and raises what is no usage error."""

    def run(command: click.Command, *arguments: object, status: int = 0) -> str:
        result = CliRunner().invoke(command, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == status, result.output
        return result.output

    return run
