"""The plugins of spark-runtime: its operators, and its commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from forebay_state_api.plugins import hookimpl

if TYPE_CHECKING:
    from collections.abc import Sequence

    import click

    from forebay_state_api.contract.hookspecs import Operator


class Process:
    """The operator ``process``: a keyed function over a keyed DataFrame."""

    name: ClassVar[str] = "process"
    contract_version: ClassVar[int] = 2

    @staticmethod
    def apply(keyed_df: Any, fn: Any, schema: Any) -> Any:
        """Return ``keyed_df.process(fn, schema)``."""
        return keyed_df.process(fn, schema)


@hookimpl
def forebay_operators() -> list[type[Operator]]:
    """Offer ``process``, ``ordered_wait`` and ``unordered_wait``."""
    from forebay_spark_runtime.waiting.operators import OrderedWait, UnorderedWait

    return [Process, OrderedWait, UnorderedWait]


@hookimpl
def forebay_commands() -> Sequence[click.Command]:
    """Offer ``forebay demo``, ``forebay import-tws`` and ``forebay ticks``."""
    from forebay_cli.lazy import LazyCommand
    from forebay_spark_runtime.demo.command import demo

    takeover = LazyCommand(
        "import-tws",
        "forebay_spark_runtime.importing.command:import_tws_command",
        "Take over a stopped transformWithState query, with its source positions and watermark.",
    )
    ticks = LazyCommand(
        "ticks",
        "forebay_spark_runtime.ticks_command:ticks_command",
        "Let a stopped query of Spark Connect begin or cease to have ticks at its next start.",
    )
    return [demo, takeover, ticks]
