"""One Spark session for all tests, and a `Stage` in which a test runs its streams."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyspark
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkRuntimeError

from forebay_state_api.storage.opening import open_storage

# The workers must run this environment, whatever else the machine has.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

HERE = Path(__file__).parent
_CLASSES = pytest.StashKey()
KIT = "forebay_testing.backends"
SESSIONS = 2
TOGETHER = {
    "tests/spark/test_pipelines.py": "tests/spark/test_connect.py",
    "tests/spark/test_ordered_wait_kills.py": "tests/spark/test_failures.py",
    "tests/spark/test_timers_and_ttl_kills.py": "tests/spark/test_failures.py",
    "tests/spark/test_failing_records_kills.py": "tests/spark/test_failures.py",
}
"""Files that run in the process of another file: those that kill share a JVM, others a server."""
LONGEST = ("tests/test_third_party.py", "tests/test_demo.py", "tests/test_examples.py")
"""Files that take longest; the demo's is one test, behind which the next file waits. The examples
would be the last with Spark, while another session has nothing left to do."""
WITH_SPARK = (
    "tests/spark/",
    "tests/docs/",
    "tests/test_demo",
    "tests/test_examples",
    "tests/test_third",
)

# Separate projects, which test_third_party.py and others install.
collect_ignore = ["third_party_backend", "third_party_operator"]


def quick_checkpoints():
    """The class that writes Spark's checkpoints; Spark's default starts processes for each file.

    This one also writes a file under another name and renames it.
    """
    package = "streaming" if pyspark.__version__ < "4.1" else "streaming.checkpointing"
    manager = f"org.apache.spark.sql.execution.{package}.FileSystemBasedCheckpointFileManager"
    return f"spark.sql.streaming.checkpointFileManagerClass={manager}"


def lean_hadoop(folder):
    """A jar that saves Spark work: few defaults of Hadoop, and its local files without processes.

    Spark sends all settings with each task that writes, a fifth of the work of a small micro-batch.
    Hadoop has files with 2,000 defaults, and nearly all of them are in its code as well.
    """
    jar = folder / "lean-hadoop.jar"
    if not jar.exists():  # the archive of classes is for this very file
        made = jar.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(made, "w") as file:
            for name in ("core", "hdfs", "mapred", "yarn"):
                file.write(HERE / "spark_conf" / "hadoop-default.xml", f"{name}-default.xml")
            with tempfile.TemporaryDirectory() as classes:
                for path in local_files(classes):
                    file.write(path, path.name)
        made.rename(jar)
    return jar


def local_files(folder):
    """The compiled classes of ``LocalFiles.java``; none of them where a JDK is missing.

    Tests pass without them, but Hadoop then starts a dozen processes in each micro-batch.
    """
    home = os.environ.get("JAVA_HOME")
    javac = shutil.which("javac", path=f"{home}/bin" if home else None)
    if javac is not None:
        (hadoop,) = Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar")
        source = HERE / "spark_conf" / "LocalFiles.java"
        subprocess.run([javac, "-nowarn", "-d", folder, "-cp", hadoop, source], check=True)
    return sorted(Path(folder).glob("*.class"))


class SparkClasses:
    """Makes all JVMs start fast: the session's, and the JVMs of processes that tests start.

    A run in one process makes an archive of the classes that Spark loads, in a job; JVMs of later
    runs use it. Without it, or with the archive of another JDK, JVMs load their classes as usual.
    It takes as long as it saves seven JVMs, so a run in several processes does not make it.
    """

    def __init__(self, cache):
        settings, conf = HERE / "spark_conf", cache / "conf"
        # With an archive of classes, each directory of the class path must be empty.
        conf.mkdir(exist_ok=True)
        os.environ["SPARK_CONF_DIR"] = str(conf)
        properties = settings / "spark-defaults.conf"
        options = [f'--properties-file "{properties}"', f"--conf {quick_checkpoints()}"]
        options.append("--conf spark.python.daemon.module=forked_workers")
        jar = lean_hadoop(cache)
        options.append(f'--driver-class-path "{jar}"')
        with zipfile.ZipFile(jar) as content:
            if "LocalFiles.class" in content.namelist():
                options.append("--conf spark.hadoop.fs.file.impl=LocalFiles")
        os.environ["PYSPARK_SUBMIT_ARGS"] = " ".join([*options, "pyspark-shell"])
        paths = [str(HERE / "workers"), os.environ.get("PYTHONPATH")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        self._archive = cache / f"spark-{pyspark.__version__}.jsa"
        self._options = (
            "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Xlog:disable "
            # Without it the JVM collects all garbage four times while it loads its classes.
            "-XX:MetaspaceSize=256m "
            f"-Dlog4j2.configurationFile={settings / 'log4j2.properties'} "
            "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
        )
        os.environ["JAVA_TOOL_OPTIONS"] = self._options
        if self._archive.exists():  # without the file a JVM does not use its own archive either
            os.environ["JAVA_TOOL_OPTIONS"] += f" -XX:SharedArchiveFile={self._archive}"
        self._log = cache / "archive.log"
        self._job = None

    def archive(self):
        """Start making the archive in the background, unless it exists."""
        if not self._archive.exists():
            with self._log.open("wb") as log:
                self._job = subprocess.Popen(
                    [sys.executable, HERE / "jobs" / "archive_classes.py", self._archive],
                    env={**os.environ, "JAVA_TOOL_OPTIONS": self._options},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )

    def check(self):
        """Warn if the archive could not be made: tests pass without it, but JVMs start slowly."""
        if self._job is not None and self._job.poll():
            said = self._log.read_text(errors="replace")[-4000:]
            warnings.warn(f"the archive of Spark's classes was not made: {said}", stacklevel=1)

    def close(self):
        """Stop the processes that the archive needs."""
        if self._job is not None and self._job.poll() is None:
            os.killpg(self._job.pid, signal.SIGTERM)
            self._job.wait()


def pytest_configure(config):
    spark = "not spark" not in config.option.markexpr
    if spark and config.pluginmanager.hasplugin("cacheprovider"):
        config.stash[_CLASSES] = SparkClasses(config.cache.mkdir("lean-spark"))


def _turn(item):
    """Return 0 for files with Spark, 1 for the kit, 2 for files with Ray, 3 for all others."""
    marks = [item.get_closest_marker(name) is not None for name in ("spark", "kit", "ray")]
    return [*marks, True].index(True)


def pytest_collection_modifyitems(items):
    """Sort long files first, so that no process is left with a long one at the end.

    Files with Ray are the last of these: no JVM is forked from a process with Ray's threads, and
    nodes, for which Ray waits 30 seconds, do not start while JVMs start and classes are archived.
    """
    turns = {}
    for item in items:
        if item.function.__module__.startswith(KIT):
            item.add_marker("kit")
        turns[item.path] = min(_turn(item), turns.get(item.path, 3))
    items.sort(key=lambda item: (turns[item.path], not item.nodeid.startswith(LONGEST)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Schedules whole files. At most two processes get files with Spark, and so have sessions."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return TOGETHER.get(file, file)

        def _assign_work_unit(self, node):
            files = self.assigned_work[node]
            for file in [file for file, ended in files.items() if all(ended.values())]:
                del files[file]  # after each test, those of all files that are left are counted
            if self.nodes.index(node) >= SESSIONS:
                others = (file for file in self.workqueue if not file.startswith(WITH_SPARK))
                if (file := next(others, None)) is None:
                    node.shutdown()
                    return
                self.workqueue.move_to_end(file, last=False)
            super()._assign_work_unit(node)

    return Scheduling(config, log)


def _is_compiled():
    return sys.dont_write_bytecode or any(HERE.glob("__pycache__/test_*-pytest-*.pyc"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config):
    """Before the first of all whole runs, compile the tests, half of them in each of two processes.

    Each process of the run would compile all of them by itself, all at the same time.
    """
    if config.args_source is not config.ArgsSource.TESTPATHS or _is_compiled():
        return
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0"]
    collect += ["-p", "no:cacheprovider", "-m", config.option.markexpr]
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    halves = config.args[:1], config.args[1:]
    for job in [subprocess.Popen([*collect, *half], **quiet) for half in halves]:
        job.wait()  # what cannot be collected is said by the processes


def pytest_collection_finish(session):
    classes = session.config.stash.get(_CLASSES, None)
    alone = "PYTEST_XDIST_WORKER" not in os.environ
    if classes and alone and any(item.get_closest_marker("spark") for item in session.items):
        classes.archive()


def pytest_sessionfinish(session):
    if classes := session.config.stash.get(_CLASSES, None):
        classes.check()


def pytest_unconfigure(config):
    if classes := config.stash.get(_CLASSES, None):
        classes.close()


def _started(builder, capture, more=2, pause_s=10.0):
    """Start a session; if its JVM ends before it listens, try again, each time after a pause.

    A machine may have no room for another process at that moment, and a session that fails once
    fails all tests that share it. The JVM's output is in a warning.
    """
    capture.read_global_capture()
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        said = "".join(capture.read_global_capture()).strip()
        if "JAVA_GATEWAY_EXITED" not in str(error) or not more:
            error.add_note(said)
            raise
        warnings.warn(f"the JVM of the tests ended, another is started: {said}", stacklevel=1)
    time.sleep(pause_s)
    return _started(builder, capture, more - 1, pause_s)


@pytest.fixture(scope="session")
def spark(request):
    from pyspark.sql import SparkSession

    capture = request.config.pluginmanager.getplugin("capturemanager")
    session = _started(SparkSession.builder.appName("tests"), capture)
    yield session
    session.stop()


@pytest.fixture(autouse=True, scope="module")
def _functions_travel_by_value(request):
    """Workers cannot import test modules."""
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)


def committed_files(output):
    """Return the files of a sink that Spark reads: those of its log, if it is a stream's."""
    log = output / "_spark_metadata"
    if not log.exists():
        return sorted(output.glob("part-*"))
    batches = sorted(log.glob("[0-9]*"), key=lambda path: int(path.stem))
    compacted = [at for at, path in enumerate(batches) if path.suffix == ".compact"]
    entries = [
        json.loads(line)["path"]
        for path in batches[max(compacted, default=0) :]
        for line in path.read_text().splitlines()[1:]
    ]
    files = [Path(unquote(urlsplit(entry).path)) for entry in entries]
    return [file for file in files if file.parent == output]  # others are of a copied sink


PLAIN_TYPES = {"string": str, "long": int, "double": float, "boolean": bool}


def plain_rows(files, types):
    """Return the rows of JSON files, or None if a value has another type than ``types`` says."""
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    rows = [tuple(line.get(name) for name in types) for line in lines]
    fits = all(
        value is None or type(value) is wanted
        for row in rows
        for value, wanted in zip(row, types.values(), strict=True)
    )
    return rows if fits else None


def _nulls_last(row):
    return [(value is None, value) for value in row]


class Stage:
    """The directories of one test: input, output, checkpoint and state."""

    def __init__(self, session, folder):
        self.spark = session
        self.folder = Path(folder)
        self.state = self.folder / "state"
        self.checkpoint = self.folder / "checkpoint"
        self.input = self.folder / "input"
        self.output = self.folder / "output"
        self._files = 0

    def put(self, *rows, into=None):
        """Write a file of JSON rows; a micro-batch reads one file, in the order of the calls."""
        folder = Path(into or self.input)
        folder.mkdir(parents=True, exist_ok=True)
        aside = self.folder / "aside.json"
        aside.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(aside, (1_700_000_000 + self._files, 1_700_000_000 + self._files))
        aside.rename(folder / f"{self._files:06d}.json")
        self._files += 1

    def put_ids(self, batches, size=50):
        """Write files of rows that have consecutive numbers as ``id``."""
        for batch in range(batches):
            self.put(*[{"id": batch * size + n} for n in range(size)])

    def source(self, schema="user string, n long", *, folder=None):
        """Return the files as a stream."""
        folder = Path(folder or self.input)
        folder.mkdir(parents=True, exist_ok=True)
        reader = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        return reader.json(str(folder))

    def start(self, df, *, checkpoint=None, output=None, **options):
        """Start a query that ends after the available input."""
        writer = df.writeStream.format("json").option("path", str(output or self.output))
        writer = writer.option("checkpointLocation", str(checkpoint or self.checkpoint))
        return writer.options(**options).trigger(availableNow=True).start()

    def run(self, df, **options):
        """Run a query on the available input; raise its error, if any."""
        query = self.start(df, **options)
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return query

    def each_batch(self, function, df=None, *, checkpoint=None, **options):
        """Run ``function(batch_df, batch_id)`` on the available input, in ``foreachBatch``."""
        writer = (self.source() if df is None else df).writeStream.foreachBatch(function)
        writer = writer.option("checkpointLocation", str(checkpoint or self.checkpoint))
        query = writer.options(**options).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def rows(self, schema, *, output=None):
        """Return the rows that the sink has committed, sorted."""
        found = self._plain_rows(schema, Path(output or self.output))
        if found is None:
            found = self.rows_by_spark(schema, output=output)
        return sorted(found, key=_nulls_last)

    @staticmethod
    def _plain_rows(schema, output):
        """Return the rows without a job, which would take longer than some tests, or None."""
        columns = [column.split() for column in schema.split(",")]
        if not all(len(column) == 2 and column[1] in PLAIN_TYPES for column in columns):
            return None
        types = {name: PLAIN_TYPES[declared] for name, declared in columns}
        return plain_rows(committed_files(output), types)

    def rows_by_spark(self, schema, *, output=None):
        """Return the rows that the sink has committed, as Spark reads them."""
        found = self.spark.read.schema(schema).json(str(output or self.output))
        return list(map(tuple, found.collect()))

    def operators(self):
        """Return the folders of operators in the state directory, by uid."""
        return {path.name: path for path in self.state.glob("*/*")}

    def manifests(self, uid="counts"):
        """Return version → names of manifests, for one operator."""
        found = {}
        stored = open_storage(str(self.operators()[uid])).list("versions")
        for _, folder, *_, name in sorted(info.name.split("/") for info in stored):
            if name.startswith("manifest-"):
                found.setdefault((1 << 48) - 1 - int(folder, 16), []).append(name)
        return found


@pytest.fixture
def stage(spark, tmp_path):
    spark.conf.set("spark.forebay.state.dir", str(tmp_path / "state"))
    yield Stage(spark, tmp_path)
    for query in spark.streams.active:
        query.stop()
    # In one text, and not by a query, which takes longer than some tests.
    for name in spark.conf._jconf.getAll().keySet().mkString("\n").split("\n"):
        if name.startswith("spark.forebay."):
            spark.conf.unset(name)
