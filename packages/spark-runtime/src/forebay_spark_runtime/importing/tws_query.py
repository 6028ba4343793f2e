"""A stopped ``transformWithState`` query, as Spark's state readers describe it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the customary name
from pyspark.sql import types as T  # noqa: N812 - the customary name

from forebay_state_api.contract.changes import Shape
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.timers import TimeDomain
from forebay_state_processor.importing.spark_checkpoint import StoppedQuery

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

Found = TypeVar("Found")

_OPERATOR: Final = "transformWithState"
"""The beginning of the operator's names: Spark has one for each language."""
_OLDEST: Final = (4, 0)
"""The oldest Spark that has the operator and reads its state."""
_SHAPES: Final = {"ValueState": Shape.POINT, "ListState": Shape.LIST, "MapState": Shape.MAP}
_CONTENT: Final = {Shape.POINT: "value", Shape.LIST: "list_value", Shape.MAP: "map_value"}
_TIMES: Final = {
    "EventTime": TimeDomain.EVENT_TIME,
    "ProcessingTime": TimeDomain.PROCESSING_TIME,
}
"""Spark's time mode → the domain of its timers."""
EXPIRY: Final = "ttlExpirationMs"
"""The field next to each value with a TTL: when it expires, in ms since the epoch."""
_PLAIN: Final = re.compile(r"[\w./:@+=,~-]*", re.ASCII)
"""A location that is the same as a URL."""
KEY: Final = "key"
CONTENT: Final = "content"
"""The columns of `TwsQuery.rows` and `TwsQuery.timers`."""


@attrs.frozen(kw_only=True)
class Variable:
    """A state variable of the operator."""

    name: str
    shape: Shape
    has_ttl: bool
    rows: DataFrame = attrs.field(repr=False)
    """`KEY`, a struct, and `CONTENT`, Spark's value, list or map."""

    @property
    def value(self) -> T.StructType:
        """The struct of values, elements or of a map's values."""
        kind: Any = self.rows.schema[CONTENT].dataType
        if self.shape is Shape.LIST:
            kind = kind.elementType
        elif self.shape is Shape.MAP:
            kind = kind.valueType
        found: T.StructType = kind["value"].dataType if self.has_ttl else kind
        return found

    @property
    def user_key(self) -> T.StructType | None:
        """The struct of a map's keys; ``None`` for other shapes."""
        kind: Any = self.rows.schema[CONTENT].dataType
        return kind.keyType if self.shape is Shape.MAP else None


@attrs.frozen(kw_only=True)
class TwsQuery:
    """The operator's state after the last committed batch."""

    stopped: StoppedQuery
    variables: Mapping[str, Variable]
    domain: TimeDomain | None
    """The domain of its timers; ``None`` with the time mode ``None``."""
    timers: DataFrame | None = attrs.field(repr=False)
    """`KEY` and `CONTENT`, the time in ms since the epoch; ``None`` without a time mode."""
    key: T.StructType
    """The grouping columns."""

    @classmethod
    def read(cls, spark: SparkSession, location: str, stopped: StoppedQuery) -> TwsQuery:
        """Ask Spark for the state in the checkpoint at ``location``.

        Raises `ConfigurationError` if Spark is too old or cannot read it, if no batch is committed,
        and unless the operator is the only one with state.
        """
        _check_spark(spark)
        batch = stopped.next_batch - 1
        if batch < 0:
            raise ConfigurationError(
                f"the query of {location} has committed no batch: there is no state to import. "
                "Start ours with a new checkpoint"
            )
        operator = _only_operator(spark, location)
        properties = json.loads(operator["operatorProperties"])
        reading = _Reading(spark, location, batch, operator)
        variables = {
            one["stateName"]: _variable(reading, one)
            for one in properties["stateVariables"]
            if one["stateVariableType"] in _SHAPES
        }
        domain = _TIMES.get(properties["timeMode"])
        timers = None if domain is None else reading.timers()
        frame = next((one.rows for one in variables.values()), timers)
        if frame is None:
            raise ConfigurationError(
                f"the operator {_OPERATOR} of {location} has neither states nor timers"
            )
        key: Any = frame.schema[KEY].dataType
        return cls(stopped=stopped, variables=variables, domain=domain, timers=timers, key=key)


def _check_spark(spark: SparkSession) -> None:
    version = tuple(int(part) for part in spark.version.split(".")[:2])
    if version < _OLDEST:
        raise ConfigurationError(
            f"this is Spark {spark.version}: {_OPERATOR}, and the reader of its state, are in "
            "Spark 4.0 and newer"
        )


def _only_operator(spark: SparkSession, location: str) -> Any:
    """Return the row of Spark's ``state-metadata`` about the operator."""
    found = _from_spark(
        location, lambda: spark.read.format("state-metadata").load(location).collect()
    )
    by_operator = {row["operatorId"]: row for row in found}
    names = sorted(row["operatorName"] for row in by_operator.values())
    if len(names) != 1 or not names[0].startswith(_OPERATOR):
        there = ", ".join(names) or "no operator with state"
        raise ConfigurationError(
            f"the query of {location} has {there}: import-tws takes over a query whose only "
            f"operator with state is {_OPERATOR}. The copied checkpoint would not hold the state "
            "of others"
        )
    return next(iter(by_operator.values()))


def _variable(reading: _Reading, described: Mapping[str, Any]) -> Variable:
    shape = _SHAPES[described["stateVariableType"]]
    name = described["stateName"]
    rows = reading.rows(_CONTENT[shape], stateVarName=name, flattenCollectionTypes="false")
    return Variable(name=name, shape=shape, has_ttl=described["ttlEnabled"], rows=rows)


@attrs.frozen
class _Reading:
    """Reads with Spark's ``statestore``."""

    spark: SparkSession
    location: str
    batch: int
    operator: Any

    def rows(self, content: str, **options: str) -> DataFrame:
        reader = self.spark.read.format("statestore").options(
            batchId=str(self.batch), operatorId=str(self.operator["operatorId"]), **options
        )
        found = _from_spark(self.location, lambda: _analysed(reader.load(self.location)))
        return found.select(KEY, F.col(content).alias(CONTENT))

    def timers(self) -> DataFrame:
        return self.rows("expiration_timestamp_ms", readRegisteredTimers="true")


def _analysed(frame: DataFrame) -> DataFrame:
    """Return a DataFrame after its analysis, which Spark Connect puts off."""
    _ = frame.schema
    return frame


def _from_spark(location: str, ask: Callable[[], Found]) -> Found:
    try:
        return ask()
    except PySparkException as error:
        reason = str(error).splitlines()[0]
        raise ConfigurationError(
            f"Spark cannot read the state in {location}: {reason}{_hint(location)}"
        ) from error


def _hint(location: str) -> str:
    if _PLAIN.fullmatch(location):
        return ""
    return (
        ". Spark's reader of state finds no checkpoint with a blank, or another character that "
        "URLs escape, in its location: copy the checkpoint to a place without"
    )
