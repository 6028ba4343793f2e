"""The names of all objects that one operator stores; no other module knows them.

::

    <state dir>/<query id>/<uid>/
        epochs/<number>-<since>-<run key>-<Spark run>
        epochs/recovery-<number>
        taken/<number>
        runs/<run key>
        versions/<inverted version>/<pair>/marker-<coordinates>
        versions/<inverted version>/<pair>/manifest-<coordinates>-<random>-<time>-<figures>-<size>
        data/<inverted version>/<kind>-<random>
        data/<inverted version>/compaction-<random>/claim
        data/<inverted version>/compaction-<random>/run-<random>/<what one run writes>
        data/<inverted version>/compaction-<random>/result
        data/<inverted version>/calls/<time>-<first>-<last>-<epoch>-<run key>-<attempt>-<number>
        pins/<version>-<id>-<lease>-<renewal>
        savepoints/<name>
        history/<inverted newest version>-<inverted oldest version>-<digest>
        sources/<id>
        final/<version>-<run key>
        cleared/<version>-<retention>-<min age>
        probes/<random>
    <state dir>/kept.answers/<query id>/<uid of an ordered wait>/
        data/<inverted version>/calls/…, as above

Version numbers are inverted and written in fixed-width hex, so that the newest version comes first
in a listing and all objects of one version share a prefix. Below it the subtasks share folders in
pairs, the first with the last, the second with the last but one: a subtask that lists its own
folder sees a handful of names, however many subtasks there are. The names hold everything that
decides about a version: a listing is enough, and no object has to be read. Names that do not parse
are ignored.
"""

from __future__ import annotations

import re
from typing import Final, Self

import attrs

from forebay_engine.versions.format.figures import MOST_CHARACTERS, NONE, Figures
from forebay_state_api.contract.file_names import DATA, inverted, version_of
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.keys import KeyGroupRange

EPOCHS: Final = "epochs"
RECOVERY: Final = "recovery-"
"""Prefix of a decision's name among the epochs."""
TAKEN: Final = "taken"
RUNS: Final = "runs"
VERSIONS: Final = "versions"
PINS: Final = "pins"
SAVEPOINTS: Final = "savepoints"
HISTORY: Final = "history"
SOURCES: Final = "sources"
FINAL: Final = "final"
CLEARED: Final = "cleared"
PROBES: Final = "probes"
KEPT_ANSWERS: Final = "kept.answers"
"""The folder of the answers of ordered waits, next to those of queries."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9_\-]")
_ESCAPED: Final = re.compile(r"=([0-9a-f]{2})")
_PART: Final = r"(?:[A-Za-z0-9_\-]|=[0-9a-f]{2})+"
_OPERATOR: Final = re.compile(rf"{_PART}/{_PART}")
_MOST_NAME_BYTES: Final = 200
_FINAL: Final = re.compile(rf"{FINAL}/(\d+)-([0-9a-f]{{16}})")


def escaped(name: str, what: str) -> str:
    """Turn a user's name into one path part that `unescaped` turns back.

    Letters, digits, ``_`` and ``-`` stay; every other UTF-8 byte becomes ``=xx``. Raises
    `ConfigurationError` for what cannot be such a part; ``what`` names it.
    """
    if not isinstance(name, str):
        raise ConfigurationError(f"{what} is a string, not {name!r:.100}")
    try:
        text = "".join(c if _PLAIN.fullmatch(c) else _hex(c) for c in name)
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"{what} is not valid text: {error}") from error
    if not text:
        raise ConfigurationError(f"{what} is an empty string")
    if len(text) > _MOST_NAME_BYTES:
        raise ConfigurationError(
            f"{what} is too long for a path: {len(text)} bytes, at most {_MOST_NAME_BYTES}"
        )
    return text


def _hex(character: str) -> str:
    return "".join(f"={byte:02x}" for byte in character.encode())


def unescaped(text: str) -> str:
    """Return the name that `escaped` was given."""
    data = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)
    return data.encode("latin-1").decode()


def operator_folder(query_id: str, uid: str) -> str:
    """Return the operator's folder below the state directory."""
    return f"{escaped(query_id, 'the query id')}/{escaped(uid, 'the uid')}"


def waits_folder(query_id: str, uid: str) -> str:
    """Return the folder of an ordered wait's kept answers below the state directory.

    Its first part has a dot, as no query's folder has: it is no operator with versions.
    """
    return f"{KEPT_ANSWERS}/{operator_folder(query_id, uid)}"


def is_operator_folder(name: str) -> bool:
    """Return whether `operator_folder` could have returned ``name``."""
    return _OPERATOR.fullmatch(name) is not None


def version_folder(version: int) -> str:
    """Return the folder of a version's markers and manifests."""
    return f"{VERSIONS}/{inverted(version)}"


def other_of_pair(subtask: int, parallelism: int) -> int:
    """Return the subtask that shares a folder with ``subtask``; the middle one has its own."""
    return parallelism - 1 - subtask


def pair_folder(version: int, subtask: int, parallelism: int) -> str:
    """Return the folder of a subtask's markers and manifests, which the other of its pair shares.

    The first and the last subtask share one, because a Spark job that runs only some of the
    partitions starts at one end.
    """
    pair = min(subtask, other_of_pair(subtask, parallelism))
    return f"{version_folder(version)}/{pair}"


@attrs.frozen(kw_only=True)
class Coordinates:
    """The task attempt that made a marker or a manifest, as its name encodes it."""

    version: int
    """The version that is being made."""
    max_parallelism: int
    parallelism: int
    subtask: int
    range: KeyGroupRange
    epoch: int
    """Number of the run's epoch, as the task knew it."""
    run_key: str
    attempt_id: int
    """Spark's task attempt id: unique and growing within a driver."""
    random_id: str = ""
    """The identity of a manifest; empty in a marker's name."""

    def attempt(self) -> str:
        """Return the coordinates as in a marker's name: always the same for one attempt."""
        numbers = (self.max_parallelism, self.parallelism, self.subtask)
        groups = (self.range.start, self.range.end)
        parts = (*numbers, *groups, self.epoch, self.run_key, self.attempt_id)
        return "-".join(str(part) for part in parts)

    def text(self) -> str:
        """Return the coordinates as in a manifest's name."""
        return f"{self.attempt()}-{self.random_id}"

    @property
    def folder(self) -> str:
        """The folder of the marker and the manifest."""
        return pair_folder(self.version, self.subtask, self.parallelism)

    @classmethod
    def parse(cls, version: int, text: str) -> Self | None:
        """Parse a name that `text` and `attempt` made; return ``None`` for any other name."""
        match = _COORDINATES.fullmatch(text)
        if match is None:
            return None
        numbers = [int(n) for n in match.group(1, 2, 3, 4, 5, 6, 8)]
        if numbers[3] > numbers[4]:
            return None
        return cls(
            version=version,
            max_parallelism=numbers[0],
            parallelism=numbers[1],
            subtask=numbers[2],
            range=KeyGroupRange(numbers[3], numbers[4]),
            epoch=numbers[5],
            run_key=match[7],
            attempt_id=numbers[6],
            random_id=match[9] or "",
        )


_COORDINATES: Final = re.compile(
    r"(\d+)-(\d+)-(\d+)-(\d+)-(\d+)-(\d+)-([0-9a-f]{16})-(\d+)(?:-([0-9a-f]{24}))?"
)


def marker_name(made: Coordinates) -> str:
    """Return the name of the object that marks that this attempt began to make this version."""
    return f"{made.folder}/marker-{made.attempt()}"


def manifest_name(
    made: Coordinates, batch_ms: int, size: int, figures: Figures = NONE, clocks: str = ""
) -> str:
    """Return the name of a manifest.

    It contains the size, so that a listing distinguishes a torn manifest from a whole one, the
    batch's time, so that a listing shows whether the query's checkpoint knows this batch,
    ``clocks`` (`named_clocks`), so that a listing is enough for the next watermark, and figures, so
    that it shows what the batch took and made.
    """
    begin, end = f"manifest-{made.text()}-{batch_ms}", f"-{size}"
    text = clocks + figures.text(MOST_CHARACTERS - len(begin) - len(clocks) - len(end) - 1)
    return f"{made.folder}/{begin}{text and '-'}{text}{end}"


def final_name(version: int, run_key: str) -> str:
    """Return the name of the mark that a version is final."""
    return f"{FINAL}/{version}-{run_key}"


def final_mark(name: str) -> tuple[int, str] | None:
    """Return the version of a mark, and its run; ``None`` if the name is not a mark's."""
    match = _FINAL.fullmatch(name)
    return match and (int(match[1]), match[2])


@attrs.frozen(kw_only=True)
class AnswersName:
    """The name of an object with answers of calls; no manifest names it."""

    version: int
    """The version that the micro-batch makes."""
    batch_ms: int
    """The batch's time in the query's checkpoint; 0 if unknown."""
    range: KeyGroupRange
    """The key groups of the task; of an ordered wait its partition alone."""
    epoch: int
    run_key: str
    attempt_id: int
    number: int = 0
    """A number that grows from object to object of an attempt."""

    @classmethod
    def of_attempt(cls, made: Coordinates, batch_ms: int) -> Self:
        """Return the name of an attempt's first object."""
        return cls(
            version=made.version,
            batch_ms=batch_ms,
            range=made.range,
            epoch=made.epoch,
            run_key=made.run_key,
            attempt_id=made.attempt_id,
        )

    def text(self) -> str:
        """Return the object's name."""
        groups = f"{self.range.start}-{self.range.end}"
        made = f"{self.epoch}-{self.run_key}-{self.attempt_id}-{self.number}"
        return f"{answers_folder(self.version)}/{self.batch_ms}-{groups}-{made}"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Parse a name that `text` made; return ``None`` for any other name."""
        match = _ANSWERS.fullmatch(name)
        version = None if match is None else version_of(match[1])
        if match is None or version is None:
            return None
        batch_ms, start, end, epoch = map(int, match.group(2, 3, 4, 5))
        if start > end:
            return None
        return cls(
            version=version,
            batch_ms=batch_ms,
            range=KeyGroupRange(start, end),
            epoch=epoch,
            run_key=match[6],
            attempt_id=int(match[7]),
            number=int(match[8]),
        )


_ANSWERS: Final = re.compile(
    rf"{DATA}/([0-9a-f]{{12}})/calls/(\d+)-(\d+)-(\d+)-(\d+)-([0-9a-f]{{16}})-(\d+)-(\d+)"
)


def answers_folder(version: int) -> str:
    """Return the folder of the answers of calls of the micro-batch that makes ``version``."""
    return f"{DATA}/{inverted(version)}/calls"
