"""A stream of two keyed operators and a wait, whose figures Spark's metrics system serves.

Its arguments are an empty folder, the port of the web UI and further settings as ``name=value``.
It says when figures can be read, goes on with a row now and then, and ends with its input; the
names of Java's management beans are then in the folder's ``beans``.
"""

from __future__ import annotations

import select
import sys
from pathlib import Path

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from forebay_spark_runtime import keyed, ordered_wait
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Count(KeyedProcessFunction):
    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))

    def process_element(self, row, ctx):
        self.n.update(self.n.value() + 1)
        yield row.user, self.n.value()


async def greet(row, client):
    return f"hello {row.user}"


def session(folder, port, *more):
    servlet = "spark.metrics.conf.*.sink.prometheusServlet"
    settings = {
        "spark.ui.enabled": "true",
        "spark.ui.port": port,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        f"{servlet}.class": "org.apache.spark.metrics.sink.PrometheusServlet",
        f"{servlet}.path": "/metrics/prometheus",
        "spark.metrics.namespace": "metered",
        "spark.sql.shuffle.partitions": "2",
        "spark.forebay.state.dir": str(folder / "state"),
        **dict(setting.split("=", 1) for setting in more),
    }
    builder = SparkSession.builder.master("local[2]").appName("metered")
    return builder.config(map=settings).getOrCreate()


def beans(spark):
    """Return the names of the driver's management beans, which JMX shows."""
    jvm = spark._jvm
    server = jvm.java.lang.management.ManagementFactory.getPlatformMBeanServer()
    # The server's class is not public, so the method of its interface is called.
    methods = jvm.java.lang.Class.forName("javax.management.MBeanServer").getMethods()
    (query,) = [method for method in methods if method.getName() == "queryNames"]
    arguments = spark.sparkContext._gateway.new_array(jvm.java.lang.Object, 2)
    names = query.invoke(server, arguments)
    return [name.toString() for name in names]


def main():
    folder = Path(sys.argv[1])
    spark = session(folder, *sys.argv[2:])
    rows = spark.readStream.format("rate").option("rowsPerSecond", 20).load()
    users = rows.select(F.expr("concat('user-', value % 5)").alias("user"))
    greeted = ordered_wait(users, greet, "greeting string", name="greet", columns=["user"])
    first = keyed(greeted, "user", uid="visits-heap", parallelism=2, backend="heap")
    counted = first.process(Count(), "user string, n long")
    second = keyed(counted, "user", uid="visits.lsm", parallelism=2, backend="lsm")
    sink = (
        second.process(Count(), "user string, n long")
        .writeStream.queryName("my clicks")
        .format("noop")
    )
    query = sink.option("checkpointLocation", str(folder / "checkpoint")).start()
    while not query.lastProgress:
        query.awaitTermination(1)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while not select.select([sys.stdin], [], [], 0)[0]:
        query.awaitTermination(1)
    (folder / "beans").write_text("\n".join(beans(spark)))
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
