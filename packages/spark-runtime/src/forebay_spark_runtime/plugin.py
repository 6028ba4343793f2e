"""What spark-runtime offers through the plugin layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay_state_api.plugins import hookimpl

if TYPE_CHECKING:
    import click


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


@hookimpl
def forebay_commands() -> click.Command:
    """Offer ``forebay demo``."""
    from forebay_spark_runtime.demo.command import demo

    return demo
