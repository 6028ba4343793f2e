"""An operator that appends the length of a column's text, by calls in batches and in order."""

from __future__ import annotations

from typing import Any, ClassVar

from forebay_state_api.plugins import hookimpl


class Lengths:
    """The operator ``lengths``: ``apply(df, column, output="length int")``."""

    name: ClassVar[str] = "lengths"
    contract_version: ClassVar[int] = 2

    @staticmethod
    def apply(df: Any, column: str, output: str = "length int", **options: Any) -> Any:
        """Append ``output``; the options are the same as of `ordered_wait`."""
        from forebay_spark_runtime import Batch, ordered_wait

        async def lengths(rows: list[Any], _client: Any) -> list[int]:
            return [len(row[0]) for row in rows]

        return ordered_wait(
            df, lengths, output, columns=[column], batch=Batch(100), name="lengths", **options
        )


@hookimpl
def forebay_operators() -> type[Lengths]:
    """Offer ``lengths``."""
    return Lengths
