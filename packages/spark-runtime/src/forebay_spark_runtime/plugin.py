"""What spark-runtime offers through the plugin layer."""

from __future__ import annotations

from typing import Any

from forebay_state_api.plugins import hookimpl


class Process:
    """The operator ``process``: a keyed function over a keyed DataFrame."""

    name = "process"

    @staticmethod
    def apply(keyed_df: Any, fn: Any, schema: Any) -> Any:
        """``keyed_df.process(fn, schema)``."""
        return keyed_df.process(fn, schema)


@hookimpl
def forebay_operators() -> type[Process]:
    """Offer ``process``."""
    return Process
