"""Two streams joined by key, the example of FLIP-424: with callbacks only, and mixed.

A join key has one order (the FLIP's stream A) and any number of payments (stream B). Rows are only
inserted, as in the FLIP's text. Each side stores its rows, and looks for partners among the rows
that the other side has stored. Each payment is stored with the number of its matches.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from forebay_spark_runtime import keyed
from forebay_state_api import (
    KeyedCoProcessFunction,
    MapStateDescriptor,
    RuntimeContext,
    StateFuture,
    ValueStateDescriptor,
    completed_void_future,
)


class Order(NamedTuple):
    order_id: str
    currency: str


class Payment(NamedTuple):
    order_id: str
    payment_id: str
    currency: str
    amount: int


ORDER = ValueStateDescriptor[Order]("order", Order)
PAYMENTS = MapStateDescriptor[str, tuple[Payment, int]]("payments", str, tuple[Payment, int])
OUTPUT = "order_id string, payment_id string, amount int"


def joins(order: Order, payment: Payment) -> bool:
    """Return whether the rows meet the join's condition in addition to the key."""
    return order.currency == payment.currency


class Join(KeyedCoProcessFunction[str, Any, Any, tuple[str, str, int]]):
    """The common part of both joins: the states, and the side of the payments."""

    def open(self, context: RuntimeContext) -> None:
        self.order = context.get_state(ORDER)
        self.payments = context.get_map_state(PAYMENTS)

    def process_element2(self, row: Any, ctx: RuntimeContext) -> StateFuture[None]:
        payment = Payment(*row)

        def store(order: Order | None) -> StateFuture[None]:
            matches = 0
            if order is not None and joins(order, payment):
                ctx.collect((order.order_id, payment.payment_id, payment.amount))
                matches = 1
            return self.payments.async_put(payment.payment_id, (payment, matches))

        return self.order.async_value().then_compose(store)


class AsyncJoin(Join):
    """The join with asynchronous accesses only."""

    def process_element1(self, row: Any, ctx: RuntimeContext) -> None:
        order = Order(*row)

        def match(stored: tuple[Payment, int]) -> StateFuture[None]:
            payment, matches = stored
            if not joins(order, payment):
                return completed_void_future()
            ctx.collect((order.order_id, payment.payment_id, payment.amount))
            return self.payments.async_put(payment.payment_id, (payment, matches + 1))

        self.payments.async_values().then_compose(
            lambda payments: payments.on_next(match)
        ).then_accept(lambda _: self.order.async_update(order))


class MixedJoin(Join):
    """The join with asynchronous iteration and synchronous updates: simpler, a little slower."""

    def process_element1(self, row: Any, ctx: RuntimeContext) -> None:
        order = Order(*row)

        def match(stored: tuple[Payment, int]) -> None:
            payment, matches = stored
            if joins(order, payment):
                ctx.collect((order.order_id, payment.payment_id, payment.amount))
                self.payments.put(payment.payment_id, (payment, matches + 1))

        self.payments.async_values().then_accept(lambda payments: payments.on_next(match))
        self.order.update(order)


def run(spark: SparkSession, function: Join) -> DataFrame:
    orders = [("o1", "EUR"), ("o2", "USD")]
    payments = [("o1", "p1", "EUR", 30), ("o1", "p2", "USD", 5), ("o2", "p3", "USD", 7)]
    first = spark.createDataFrame(orders, "order_id string, currency string")
    second = spark.createDataFrame(
        payments, "order_id string, payment_id string, currency string, amount int"
    )
    left = keyed(first, "order_id", uid="join", parallelism=2)
    right = keyed(second, "order_id", uid="join", parallelism=2)
    return left.connect(right).process(function, OUTPUT)


def main() -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    for function in (AsyncJoin(), MixedJoin()):
        run(spark, function).show()  # o1 with p1, o2 with p3
    spark.stop()


if __name__ == "__main__":
    main()
