"""Resolve settings: merge what users set with the declared settings and their defaults.

A setting is named ``spark.forebay.<name>``. `resolve_settings` merges keyword arguments over the
session's configuration over defaults, and refuses unknown keys and invalid values, so that a
misspelt setting is an error instead of a silent default.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

import attrs

from forebay_state_api.errors import ConfigurationError
from forebay_state_api.settings.redaction import MASK, redacted
from forebay_state_api.settings.value_types import (
    BYTES,
    DURATION,
    LOCATION,
    SettingType,
    kind_of,
)

T = TypeVar("T", bound=attrs.AttrsInstance)

PREFIX: Final = "spark.forebay."
"""The prefix of every configuration key."""

MOST_RETENTION: Final = 1_000_000
"""The most versions that the janitor can be asked to keep."""

_STORAGE: Final = "storage."
_DEFAULT: Final = "default"
_SECRET_WORDS: Final = ("secret", "password", "token", "key", "credential", "signature")


@attrs.frozen
class Setting:
    """One setting: its name without the prefix, the type of its values, and its documentation."""

    name: str
    type: SettingType = attrs.field(converter=kind_of)
    """`str`, `int`, `float` or `bool`, or `BYTES`, `DURATION`, `LOCATION` or ``one_of(...)``."""
    default: Any
    """The default, as users write it or as a value; ``None`` if there is no default."""
    doc: str
    """One sentence for ``forebay config``."""
    minimum: float | None = attrs.field(default=None, kw_only=True)
    """The smallest valid number."""
    maximum: float | None = attrs.field(default=None, kw_only=True)
    """The largest valid number."""
    secret: bool = attrs.field(default=False, kw_only=True)
    """Mask values wherever they would be shown: in ``forebay config`` and in errors."""

    def value_of(self, given: object, *, key: str | None = None) -> Any:
        """Convert ``given``, text or value, to the setting's type.

        Raises `ConfigurationError` naming ``key`` (default: the full key), the value and the
        expected form.
        """
        try:
            value = self.type.accept(given)
            fits = (self.minimum is None or value >= self.minimum) and (
                self.maximum is None or value <= self.maximum
            )
        except (ValueError, TypeError):
            fits = False
        if fits:
            return value
        least = "" if self.minimum is None else f", at least {self.minimum:g}"
        most = "" if self.maximum is None else f", at most {self.maximum:,}"
        shown = MASK if self.secret else repr(given)
        raise ConfigurationError(
            f"{key or PREFIX + self.name} = {shown}: expected {self.type.expected}{least}{most}"
        )

    def default_value(self) -> Any:
        """Return the default in the setting's type."""
        return None if self.default is None else self.value_of(self.default)


def option(
    type: type | SettingType,  # noqa: A002 - the word of `Setting`
    default: Any,
    doc: str,
    *,
    minimum: float | None = None,
    secret: bool = False,
    name: str = "",
) -> Any:
    """Declare a field of an attrs class that is also a setting; see `settings_of`.

    :param type: as `Setting.type`.
    :param default: the default, as users write it or as the value.
    :param doc: one sentence for ``forebay config``.
    :param name: the setting's name; default: derived from the field's name.
    :param minimum: the smallest valid number; default: no limit.
    :param secret: mask values in output and errors; default: show them.
    """
    setting = Setting(name, type, default, doc, minimum=minimum, secret=secret)
    return attrs.field(default=setting.default_value(), metadata={Setting: setting})


def settings_of(options: type[attrs.AttrsInstance]) -> dict[str, Setting]:
    """Return the settings of an attrs class, by name: its fields declared with `option`.

    The field ``max_runs`` is the setting ``max-runs``, and ``timeout_s`` is ``timeout``, unless it
    has a ``name``. Other fields are constants that users cannot set and tests change.
    """
    declared = [field for field in attrs.fields(options) if Setting in field.metadata]
    return {(name := _name_of(f)): attrs.evolve(f.metadata[Setting], name=name) for f in declared}


def options_from(options: type[T], given: Mapping[str, Any]) -> T:
    """Make an instance of an attrs class from resolved settings.

    ``given`` uses the names of `settings_of`, also for fields that are not settings. Missing fields
    get their defaults; unknown names are ignored.
    """
    known = {_name_of(field): field.name for field in attrs.fields(options)}
    return options(**{known[name]: given[name] for name in given if name in known})


def _name_of(field: attrs.Attribute[Any]) -> str:
    setting = field.metadata.get(Setting)
    named = "" if setting is None else setting.name
    return named or field.name.replace("_", "-").removesuffix("-s")


@attrs.frozen(kw_only=True)
class EngineSettings:
    """The limits of an engine."""

    in_flight_limit: int = option(int, 6000, "Records that may be in flight at once.", minimum=1)
    batch_size: int = option(int, 1000, "State requests sent to the backend at once.", minimum=1)
    page_size: int = option(int, 128, "Elements in a page of a state iterator.", minimum=1)
    read_ahead: bool = option(bool, True, "Read declared point states before the first record.")  # noqa: FBT003
    drain_timeout_s: float = option(
        DURATION, "60s", "Longest wait for records in flight at a batch's end."
    )
    record_timeout_s: float | None = option(
        DURATION, None, "Longest time of a record from its first wait to its end."
    )
    calls_in_flight: int | None = option(
        int, None, "Calls of a subtask that may be made at once.", minimum=1
    )
    slice_bytes: int = option(BYTES, "8m", "Bytes of input in a slice of a batch function.")


RETRY_BUDGET: Final = Setting(
    "storage.retry-budget",
    DURATION,
    "30s",
    "How long a request to storage that fails transiently is retried.",
)
"""How long a request is retried; also a setting of the remote service's processes."""
CORE: Final = (
    Setting("state.dir", LOCATION, None, "Where state is stored: a path or a URL."),
    Setting("state.backend", str, "heap", "The state backend; `forebay plugins` lists them."),
    Setting(
        "state.cache-bytes",
        BYTES,
        "1g",
        "Budget of a worker process for what backends keep between batches.",
        minimum=0,
    ),
    Setting(
        "compaction.service", str, "local", "Where compaction runs; `forebay plugins` lists them."
    ),
    *settings_of(EngineSettings).values(),
    Setting(
        "retention",
        int,
        10,
        "Versions kept for going back.",
        minimum=1,
        maximum=MOST_RETENTION,
    ),
    Setting("progress-figures", bool, True, "Show figures in query.lastProgress."),  # noqa: FBT003
    Setting("use-kept-answers", bool, True, "Whether repeated micro-batches use kept answers."),  # noqa: FBT003
    Setting("janitor.min-age", DURATION, "1h", "Nothing younger is ever deleted."),
    RETRY_BUDGET,
    Setting(
        "storage.request-timeout", DURATION, None, "Longest wait for a response of a network store."
    ),
)
"""The settings that belong to no plugin."""


@attrs.frozen
class SettingRow:
    """A setting and its value, as a row of ``forebay config``."""

    key: str
    value: str
    """The value as users write it; secrets are masked."""
    source: str
    """``argument``, ``configuration`` or ``default``."""
    doc: str


@attrs.frozen
class _InForce:
    value: Any = attrs.field(repr=False)
    """Left out of the repr: it may be a secret."""
    shown: str
    source: str
    doc: str


@attrs.frozen
class Settings(Mapping[str, Any]):
    """The resolved settings, by name without the prefix; immutable and picklable.

    ``settings["in-flight-limit"]`` is an `int`, sizes are bytes, durations are seconds (`float`);
    a setting that has neither a value nor a default is ``None``. An unknown name is a `KeyError`.
    """

    _in_force: Mapping[str, _InForce]

    def __getitem__(self, name: str) -> Any:
        return self._in_force[name].value

    def __iter__(self) -> Iterator[str]:
        return iter(self._in_force)

    def __len__(self) -> int:
        return len(self._in_force)

    def is_default(self, name: str) -> bool:
        """Return whether the setting was left at its default."""
        return self._in_force[name].source == _DEFAULT

    def required(self, name: str, *, argument: str) -> Any:
        """Return the value of a setting that has no default.

        Raises `ConfigurationError` if it is not set, naming the key and the ``argument`` to pass.
        """
        if (value := self[name]) is None:
            raise ConfigurationError(f"{PREFIX}{name} is not set: set it, or pass {argument}=")
        return value

    def backend_options(self) -> dict[str, Any]:
        """Return the options of the backend ``state.backend``, without the backend's prefix."""
        return self.options_of(self["state.backend"])

    def options_of(self, name: str) -> dict[str, Any]:
        """Return the options of a backend, without its prefix."""
        return self._below(f"{name}.")

    def service_options(self, service: Any) -> dict[str, Any]:
        """Return the options of a compaction service, given its class, without their prefix."""
        return self.options_of(_prefix_of(service.name, service))

    def storage_options(self) -> dict[str, Any]:
        """Return the options for `open_storage`: ``storage.*`` that are set, without the prefix."""
        return {name: value for name, value in self._below(_STORAGE).items() if value is not None}

    def explain(self) -> list[SettingRow]:
        """Return each setting, its value and the value's source, sorted by key."""
        return [
            SettingRow(PREFIX + name, given.shown, given.source, given.doc)
            for name, given in sorted(self._in_force.items())
        ]

    def _below(self, prefix: str) -> dict[str, Any]:
        return {name[len(prefix) :]: self[name] for name in self if name.startswith(prefix)}


def resolve_settings(
    given: Mapping[str, str],
    *,
    overrides: Mapping[str, object] | None = None,
    backends: Mapping[str, Any] | None = None,
    services: Mapping[str, Any] | None = None,
    absent: Callable[[], str] = str,
) -> Settings:
    """Resolve settings: ``overrides`` win over ``given``, and ``given`` over the defaults.

    :param given: a configuration; keys that do not begin with ``spark.forebay.`` are ignored.
    :param overrides: keyword arguments, by the setting's name; ``None`` stands for an omitted one.
    :param backends: backends by name; their options are settings too.
    :param services: compaction services by name, also. Where a setting is declared twice, by its
        whole name, the declaration of the chosen backend or service counts.
    :param absent: returns the end of the error for an unknown key, if some may be missing there.

    Raises `ConfigurationError` for an unknown key, naming the nearest key and all that exist, and
    for an invalid value, naming key, value and expected form.
    """
    configured = {k.removeprefix(PREFIX): v for k, v in given.items() if k.startswith(PREFIX)}
    passed = {name: v for name, v in (overrides or {}).items() if v is not None}
    owners = [*(services or {}).items(), *(backends or {}).items()]
    declared = _declared(owners, {**configured, **passed})
    in_force = {
        name: _in_force(setting, setting.default_value(), _DEFAULT)
        for name, setting in declared.items()
    }
    for source, values in (("configuration", configured), ("argument", passed)):
        for name, value in values.items():
            setting = _find(name, declared, absent)
            in_force[name] = _in_force(setting, setting.value_of(value), source)
    settings = Settings(in_force)
    for owner, configurable in owners:
        _check_required(owner, configurable, settings)
    return settings


def is_of_plugin(key: str) -> bool:
    """Return whether a configuration key is a setting, but not one that this package declares."""
    name = key.removeprefix(PREFIX)
    if name == key or name.startswith(_STORAGE):
        return False
    return all(setting.name != name for setting in CORE)


def _prefix_of(owner: str, configurable: Any) -> str:
    return getattr(configurable, "options_prefix", "") or owner


def _check_required(owner: str, configurable: Any, settings: Settings) -> None:
    option = getattr(configurable, "required_option", "")
    if not option:
        return
    name = f"{_prefix_of(owner, configurable)}.{option}"
    chosen = settings["compaction.service"]
    if chosen == owner and settings[name] is None:
        raise ConfigurationError(f"{PREFIX}compaction.service={owner} needs {PREFIX}{name}")
    if chosen != owner and settings[name] is not None:
        raise ConfigurationError(
            f"{PREFIX}{name} is set, but {PREFIX}compaction.service is {chosen!r}: set it to "
            f"{owner!r}, or remove the other setting"
        )


_CHOOSING: Final = ("state.backend", "compaction.service")
"""The settings whose values are names of backends and services."""


def _declared(owners: Iterable[tuple[str, Any]], given: Mapping[str, object]) -> dict[str, Setting]:
    declared = {setting.name: setting for setting in CORE}
    chosen = [given.get(name, declared[name].default) for name in _CHOOSING]
    for owner, configurable in sorted(owners, key=lambda one: one[0] in chosen):
        options: Mapping[str, Setting] = getattr(configurable, "options", {})
        for option, setting in options.items():
            name = f"{_prefix_of(owner, configurable)}.{option}"
            declared[name] = attrs.evolve(setting, name=name)
    return declared


def _find(name: str, declared: Mapping[str, Setting], absent: Callable[[], str]) -> Setting:
    if name in declared:
        return declared[name]
    if name.startswith(_STORAGE) and name != _STORAGE:
        return Setting(name, str, None, "Passed on to the storage by this name.")
    raise ConfigurationError(_unknown(name, declared) + absent())


def _unknown(name: str, declared: Mapping[str, Setting]) -> str:
    known = sorted([*declared, f"{_STORAGE}*"])
    close = difflib.get_close_matches(name, known, n=1)
    meant = f" - did you mean {PREFIX}{close[0]}?" if close else ""
    return (
        f"there is no setting {PREFIX}{name}{meant} - known, each after {PREFIX!r}: "
        f"{', '.join(known)} (options of a backend or service that is not installed are unknown)"
    )


def _in_force(setting: Setting, value: Any, source: str) -> _InForce:
    name = setting.name
    of_storage = name.startswith(_STORAGE)
    secret = setting.secret or (of_storage and any(word in name.lower() for word in _SECRET_WORDS))
    shown = "-" if value is None else MASK if secret else redacted(setting.type.show(value))
    return _InForce(value, shown, source, setting.doc)
