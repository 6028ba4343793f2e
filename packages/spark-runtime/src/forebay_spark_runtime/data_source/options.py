"""The options of the data source, checked before anything is opened."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, Self

import attrs

from forebay_engine.versions.choosing.pins import LEASE, checked_lease
from forebay_engine.versions.format.directory_contents import listed, stored_queries
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.settings import BYTES, DURATION, PREFIX, Setting
from forebay_state_api.settings.redaction import redacted
from forebay_state_api.storage import open_storage
from forebay_state_api.storage.urls import located
from forebay_state_processor.reading import Position
from forebay_state_processor.reading.difference import HELD_BYTES
from forebay_state_processor.reading.version_choice import reader_settings, version_named

_FLAGS: Final = (
    "changes",
    "flat",
    "old",
    "provisional",
    "pushdown",
    "showExpired",
    "timers",
    "undo",
)
_TEXTS: Final = ("keyGroups", "keys", "namespace", "query", "state", "stateDir", "uid")
_OTHERS: Final = (
    "heldBytes",
    "lease",
    "maxVersionsPerTrigger",
    "path",
    "startingVersion",
    "version",
)
NAMES: Final = (*_FLAGS, *_TEXTS, *_OTHERS)
_OF_SNAPSHOTS: Final = ("flat", "keys", "namespace", "pushdown", "timers", "version")
_OF_CHANGES: Final = ("heldBytes", "maxVersionsPerTrigger", "old", "startingVersion", "undo")
_GROUPS: Final = re.compile(r"(\d+)(?:-(\d+))?")


@attrs.frozen(kw_only=True)
class ReadOptions:
    """The options by their names in Python; the reference explains each."""

    state_dir: str
    query: str
    uid: str
    conf: Mapping[str, str] = attrs.field(repr=False)
    """Settings ``spark.forebay.*``."""
    state: str | None = None
    version: int | str | None = None
    run: str | None = None
    key_groups: tuple[KeyGroupRange, ...] | None = None
    keys: str | None = None
    """JSON, which is read when the type of keys is known."""
    namespace: str | None = None
    flat: bool = False
    provisional: bool = False
    show_expired: bool = False
    pushdown: bool = False
    timers: bool = False
    changes: bool = False
    old: bool = False
    undo: bool = False
    starting_version: str | None = None
    most_versions: int | None = None
    held_bytes: int = HELD_BYTES
    lease: timedelta = LEASE

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Check options as Spark has them, whose names are in lower case.

        Raises `ConfigurationError` for an unknown, invalid or missing one.
        """
        conf, options = _split(given)
        _check_names(options)
        state_dir = _state_dir(options)
        flags = {name: _flag(options, name) for name in _FLAGS}
        _check_together(options, changes=flags["changes"], timers=flags["timers"])
        version, run = _version(options.get("version"))
        return cls(
            state_dir=state_dir,
            query=_required("query", options, state_dir, conf),
            uid=_required("uid", options, state_dir, conf),
            conf=conf,
            state=options.get("state"),
            version=version,
            run=run,
            key_groups=_key_groups(options.get("keygroups")),
            keys=options.get("keys"),
            namespace=options.get("namespace"),
            flat=flags["flat"],
            provisional=flags["provisional"],
            show_expired=flags["showExpired"],
            pushdown=flags["pushdown"],
            timers=flags["timers"],
            changes=flags["changes"],
            old=flags["old"],
            undo=flags["undo"],
            starting_version=options.get("startingversion"),
            most_versions=_count(options, "maxVersionsPerTrigger"),
            held_bytes=_held_bytes(options),
            lease=_lease(options),
        )


def _split(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split options into settings and other options, whose names are put in lower case."""
    conf = {key: value for key, value in given.items() if key.lower().startswith(PREFIX)}
    options = {key.lower(): value for key, value in given.items() if key not in conf}
    return conf, options


def _check_names(options: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in NAMES}
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {known[near[0]]!r}?" if near else "."
            raise ConfigurationError(
                f"the data source forebay has no option {name!r}{hint} Its options: "
                f"{', '.join(sorted(known.values()))}, and settings spark.forebay.*"
            )


def _check_together(options: Mapping[str, str], *, changes: bool, timers: bool) -> None:
    """Refuse options that would have no effect."""
    refused, whose = (
        (_OF_SNAPSHOTS, "option('changes', 'true')")
        if changes
        else (_OF_CHANGES, "a read without option('changes', 'true')")
    )
    useless = [name for name in refused if name.lower() in options]
    if useless:
        raise ConfigurationError(f"{whose} has no option {', '.join(useless)}")
    if changes and "state" not in options:
        raise ConfigurationError("changes are read of one state: name it with option('state', …)")
    of_states = [name for name in ("state", "flat", "keys", "pushdown") if name in options]
    if timers and of_states:
        raise ConfigurationError(
            f"option 'timers' shows timers in place of states: leave out {', '.join(of_states)}"
        )
    if "flat" in options and "state" not in options:
        raise ConfigurationError("option 'flat' is for one state: name it with option('state', …)")
    if "keys" in options and "keygroups" in options:
        raise ConfigurationError("pass one of the options keys and keyGroups, not both")
    if "namespace" in options and "keys" not in options:
        raise ConfigurationError(
            "option 'namespace' looks up keys: pass keys with it, or filter the column namespace"
        )


def _state_dir(options: Mapping[str, str]) -> str:
    named = {
        name: options[name.lower()] for name in ("stateDir", "path") if name.lower() in options
    }
    if len(set(named.values())) != 1:
        raise ConfigurationError(
            "name one state directory, with option('stateDir', …) or load(…)"
            + (f"; both were given: {redacted(listed([*named.values()]))}" if named else "")
        )
    return located(next(iter(named.values())))


def _required(
    name: str, options: Mapping[str, str], state_dir: str, conf: Mapping[str, str]
) -> str:
    """Return an option; the error for a missing one lists what is stored."""
    if options.get(name):
        return options[name]
    stored = stored_queries(open_storage(state_dir, reader_settings(conf).storage_options()))
    found = [f"{query!r} ({listed(uids)})" for query, uids in stored.items()]
    raise ConfigurationError(
        f"option {name!r} is missing; queries in {state_dir}, with the uids of their operators: "
        f"{', '.join(found) or 'none'}"
    )


def _flag(options: Mapping[str, str], name: str) -> bool:
    value: bool = Setting(name, bool, False, "").value_of(
        options.get(name.lower(), False), key=name
    )
    return value


def _count(options: Mapping[str, str], name: str) -> int | None:
    if (text := options.get(name.lower())) is None:
        return None
    value: int = Setting(name, int, None, "", minimum=1).value_of(text, key=name)
    return value


def _held_bytes(options: Mapping[str, str]) -> int:
    value: int = Setting("heldBytes", BYTES, HELD_BYTES, "", minimum=1).value_of(
        options.get("heldbytes", HELD_BYTES), key="heldBytes"
    )
    return value


def _lease(options: Mapping[str, str]) -> timedelta:
    if (text := options.get("lease")) is None:
        return LEASE
    seconds = Setting("lease", DURATION, None, "", minimum=1).value_of(text, key="lease")
    return checked_lease(timedelta(seconds=seconds))


def _version(text: str | None) -> tuple[int | str | None, str | None]:
    """Return version and run: of a number, a position, or the name of a savepoint."""
    if text is None:
        return None, None
    if "@" in text:
        position = Position.parse(text)
        return position.version, position.run
    return version_named(text), None


def _key_groups(text: str | None) -> tuple[KeyGroupRange, ...] | None:
    if text is None:
        return None
    ranges = []
    for part in text.split(","):
        match = _GROUPS.fullmatch(part.strip())
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise ConfigurationError(
                f"option keyGroups is {text!r}; write numbers and ranges, such as 0-7 or 3,12-15"
            )
        ranges.append(KeyGroupRange(int(match[1]), int(match[2] or match[1])))
    return merged(ranges)


def merged(ranges: list[KeyGroupRange]) -> tuple[KeyGroupRange, ...]:
    """Return ranges in order, of which none touches another."""
    found: list[KeyGroupRange] = []
    for one in sorted(ranges, key=lambda each: (each.start, each.end)):
        if found and one.start <= found[-1].end + 1:
            found[-1] = KeyGroupRange(found[-1].start, max(found[-1].end, one.end))
        else:
            found.append(one)
    return tuple(found)


def chosen(parts: Any, wanted: tuple[KeyGroupRange, ...] | None) -> list[KeyGroupRange]:
    """Return the wanted key groups, split by ``parts``; ``None`` selects all of them."""
    if wanted is None:
        return list(parts)
    found = (part.intersection(one) for part in parts for one in wanted)
    return [part for part in found if part]
