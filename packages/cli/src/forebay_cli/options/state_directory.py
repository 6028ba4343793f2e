"""``--state-dir`` of commands: an existing state directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from forebay_state_api.errors import ConfigurationError
from forebay_state_api.storage import open_storage
from forebay_state_api.storage.urls import is_missing, located

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_api.settings import Settings

state_dir_option: Final = click.option(
    "--state-dir", required=True, help="The state directory: a path or a URL."
)


def state_directory(state_dir: str, settings: Settings) -> ObjectStorage:
    """Open the state directory with the storage settings that a job would have.

    Raises `ConfigurationError` for a local directory that does not exist: commands create none.
    """
    text = located(state_dir)
    if is_missing(text):
        raise ConfigurationError(
            f"there is no directory {text}: check the spelling. A job creates its state directory "
            "itself; commands do not"
        )
    return open_storage(state_dir, settings.storage_options())
