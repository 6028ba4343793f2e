"""The pipeline of the how-to under Spark's declarative pipelines: two runs and a full refresh.

The runs share the server of ``test_connect.py``. The page's own command starts two JVMs for each.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "pipelines.md"
BLOCK = re.compile(r"```(?:text|python)\n(.*?)```", re.DOTALL)
PYSPARK = Path(pyspark.__file__).parent
CLI = PYSPARK / "bin" / "spark-pipelines"


class Pipeline:
    """The pipeline of the page, in its own folder."""

    def __init__(self, folder):
        self.folder = folder
        self.warehouse = folder / "warehouse"
        spec, code = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
        (folder / "transformations").mkdir()
        self.write("spark-pipeline.yml", spec)
        self.write("transformations/visits.py", code)
        (folder / "in").mkdir()

    def write(self, name, text):
        text = text.replace("/data/visits", str(self.folder))
        (self.folder / name).write_text(text, encoding="utf-8")

    def arrive(self, name, *users):
        lines = [json.dumps({"user": user}) for user in users]
        (self.folder / "in" / name).write_text("\n".join(lines), encoding="utf-8")

    def start(self, words, env):
        done = subprocess.run(
            [*words, "--spec", "spark-pipeline.yml"],
            cwd=self.folder,
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=250,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]

    def run_by_itself(self):
        """Run the page's command, with a server of its own."""
        conf = {
            "spark.sql.catalogImplementation": "hive",
            "spark.sql.warehouse.dir": str(self.warehouse),
            "spark.ui.enabled": "false",
        }
        given = [word for pair in conf.items() for word in ("--conf", "=".join(pair))]
        env = {name: text for name, text in os.environ.items() if name != "PYSPARK_SUBMIT_ARGS"}
        env |= {"PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(PYSPARK)}
        self.start([str(CLI), "run", *given], env)

    def rows(self, table):
        files = (self.warehouse / table).glob("*.parquet")
        return sorted(
            tuple(row.values()) for one in files for row in pq.read_table(one).to_pylist()
        )

    def states(self):
        return {path.name for path in (self.folder / "state").iterdir()}


INSIDE = """
    for make in (
        lambda: keyed(visits.select("user"), "user", uid="u"),
        lambda: ordered_wait(visits.select("user"), shout, "name string"),
        lambda: ordered_wait(visits, shout, "name string", name="known"),
    ):
        try:
            make()
        except Exception as error:
            with open("/data/visits/said", "a") as said:
                print(type(error).__name__, error, file=said)
    return counted
"""

TICKED = """
try:
    keyed(visits, "user", uid="ticked", state_dir="/data/visits/state", ticks="1 day")
except Exception as error:
    with open("/data/visits/refused", "w") as said:
        print(type(error).__name__, error, file=said)

"""


class SharedServerPipeline(Pipeline):
    """Runs what ``spark-pipelines`` runs, as a client of a server whose catalogue is kept."""

    def __init__(self, folder, server):
        super().__init__(folder)
        self.server = server
        self.warehouse = server.folder / "warehouse"

    def run(self, *options):
        words = [sys.executable, "-m", "pyspark.pipelines.cli", "run", *options]
        self.start(words, os.environ | self.server.environment)


@pytest.fixture(autouse=True, scope="module")
def _pipelines():
    pytest.importorskip("grpc", reason="the extra [connect] brings it")
    if not CLI.exists():
        pytest.skip("pipelines come with Spark 4.1")


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory, connect_server):
    """The first run, whose code makes operators in a query function too; later runs' does not."""
    pipeline = SharedServerPipeline(tmp_path_factory.mktemp("pipeline"), connect_server)
    pipeline.arrive("1.json", "ann", "bob", "ann")
    path = "transformations/visits.py"
    code = (pipeline.folder / path).read_text(encoding="utf-8")
    tried = code.replace("    return counted\n", INSIDE)
    pipeline.write(path, tried.replace("@dp.table\n", f"{TICKED}@dp.table\n", 1))
    pipeline.run()
    pipeline.write(path, code)
    return pipeline


def test_inside_a_query_function_the_error_says_what_to_do(pipeline):
    says = r"ConfigurationError (.*): a function under @dp\.table .* make the DataFrame outside"
    said = (pipeline.folder / "said").read_text(encoding="utf-8")
    assert set(re.findall(says, said)) == {"operator 'u'", "shout", "operator 'known'"}, said


def test_ticks_are_refused(pipeline):
    said = (pipeline.folder / "refused").read_text(encoding="utf-8")
    assert said.startswith("ConfigurationError operator 'ticked': ticks= does not work in a")


def test_the_pipeline_of_the_page_counts_and_asks(pipeline):
    assert pipeline.rows("visit_counts") == [("ann", 1), ("ann", 2), ("bob", 1)]
    assert pipeline.rows("names") == [("ann", "ANN")] * 2 + [("bob", "BOB")]


@pytest.mark.slow
def test_the_pipeline_of_the_page_goes_on_and_begins_again_when_refreshed(pipeline):
    before = pipeline.states()

    pipeline.arrive("2.json", "ann")
    pipeline.run()
    assert pipeline.rows("visit_counts")[:3] == [("ann", 1), ("ann", 2), ("ann", 3)]
    assert pipeline.rows("names") == [("ann", "ANN")] * 3 + [("bob", "BOB")]
    assert pipeline.states() == before

    pipeline.run("--full-refresh-all")
    assert pipeline.rows("visit_counts") == [("ann", 1), ("ann", 2), ("ann", 3), ("bob", 1)]
    assert before < pipeline.states()
    checkpoints = (pipeline.folder / "storage").glob("_checkpoints/**/visit_counts/*/metadata")
    used = json.loads(max(checkpoints, key=lambda one: int(one.parent.name)).read_text())["id"]
    assert pipeline.states() - before == {used}


BY_COLUMNS = """
class Columns(KeyedBatchFunction):
    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))

    def process_batch(self, rows, ctx):
        g = ctx.groups
        n = g.cumcount(self.n.get_many(g))
        self.n.put_many(g, g.last(n))
        return {"user": rows["user"], "n": n}


by_columns = keyed(visits, "user", uid="columns", state_dir="/data/visits/state")
by_columns = by_columns.process_batch(Columns(), "user string, n long")


@dp.table
def visits_by_columns():
    return by_columns
"""


@pytest.mark.slow
def test_a_batch_function_in_a_pipeline(tmp_path, connect_server):
    pipeline = SharedServerPipeline(tmp_path, connect_server)
    path = "transformations/visits.py"
    code = (pipeline.folder / path).read_text(encoding="utf-8").partition("@dp.table\n")[0]
    imports = "from forebay_state_api import KeyedBatchFunction, ValueStateDescriptor\n"
    pipeline.write(path, imports + code + BY_COLUMNS)
    for name in ("1.json", "2.json"):
        pipeline.arrive(name, "ann", "bob", "ann")
        pipeline.run()
    rows = [("ann", 1), ("ann", 2), ("ann", 3), ("ann", 4), ("bob", 1), ("bob", 2)]
    assert pipeline.rows("visits_by_columns") == rows


@pytest.mark.slow
def test_the_command_of_the_page_goes_on_where_it_was(tmp_path):
    """Each run has a server of its own, and Hive keeps the catalogue, as on the page."""
    pipeline = Pipeline(tmp_path)
    for name in ("1.json", "2.json"):
        pipeline.arrive(name, "ann", "bob")
        pipeline.run_by_itself()
    assert pipeline.rows("visit_counts") == [("ann", 1), ("ann", 2), ("bob", 1), ("bob", 2)]
    assert pipeline.rows("names") == [("ann", "ANN")] * 2 + [("bob", "BOB")] * 2
