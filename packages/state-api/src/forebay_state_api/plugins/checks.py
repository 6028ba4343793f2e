"""Checks what a hook has returned, before anyone uses it."""

from __future__ import annotations

import pkgutil
import re
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from forebay_state_api.contract import SERVED_VERSIONS
from forebay_state_api.plugins.kinds import PluginKind

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9+._-]*")


def names_of(kind: PluginKind, value: Any) -> tuple[str, ...]:
    """Return the names of a thing; an empty list if it has none."""
    try:
        names = getattr(value, kind.attribute, None)
    except (Exception, SystemExit):  # noqa: BLE001 - a property of the plugin's: see `problem_of`
        return ()
    names = names if isinstance(names, tuple) else (names,)
    return tuple(name for name in names if isinstance(name, str) and name)


def shown(value: Any) -> str:
    """Return a short text for a thing, whatever its own ``repr`` does."""
    try:
        return reprlib.repr(value)
    except (Exception, SystemExit):  # noqa: BLE001 - it may not even have a class
        return f"an object of {type(value).__name__}"


def problem_of(kind: PluginKind, value: Any) -> str:
    """Return what is wrong with a thing that a hook has returned; empty if nothing is."""
    try:
        return next(_problems(kind, value), "")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin's attributes may raise
        return f"cannot be examined: {error!r}"


def _problems(kind: PluginKind, value: Any) -> Iterator[str]:
    yield from _of_another_kind(kind, value)
    yield from _unnamed(kind, value)
    yield from _of_another_contract(kind, value)
    if missing := sorted(getattr(value, "__abstractmethods__", ())):
        yield f"is abstract: it does not implement {', '.join(missing)}"
    if kind.has_options:
        yield from _wrong_options(value)


def _of_another_kind(kind: PluginKind, value: Any) -> Iterator[str]:
    if kind.is_class and not isinstance(value, type):
        yield f"is no class: return the class of the {kind.noun} itself"
    if kind.method:
        if isinstance(value, type):
            yield "is a class: return an object of it"
        if not callable(getattr(value, kind.method, None)):
            yield f"has no method {kind.method!r}"
    if kind.contract:
        contract: type = pkgutil.resolve_name(kind.contract)
        if not (issubclass(value, contract) if kind.is_class else isinstance(value, contract)):
            yield f"is no {contract.__name__} of {contract.__module__}"


def _unnamed(kind: PluginKind, value: Any) -> Iterator[str]:
    given = getattr(value, kind.attribute, None)
    names = given if isinstance(given, tuple) and kind.several else (given,)
    if not names or None in names or "" in names:
        yield f"has no {kind.attribute!r}"
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            yield (
                f"has the {kind.attribute} {name!r}: names are of lower case letters, digits and "
                "the signs + - . _"
            )


def _of_another_contract(kind: PluginKind, value: Any) -> Iterator[str]:
    stated = getattr(value, "contract_version", None)
    if stated is None and not kind.versioned:
        return
    served = f"this forebay-state-api serves {' and '.join(map(str, sorted(SERVED_VERSIONS)))}"
    if stated is None:
        yield f"has no contract_version; {served}: declare the one that it was written for"
    elif "contract_version" not in _own_names(value):
        yield (
            "inherits its contract_version, and so would pass for a version that it was not "
            f"written for: set contract_version = {stated!r} in the class itself"
        )
    elif type(stated) is not int:
        yield f"has contract version {stated!r}, which is no whole number; {served}"
    elif stated not in SERVED_VERSIONS:
        yield f"has contract version {stated}; {served}: {_upgrade(stated)}"


def _upgrade(stated: int) -> str:
    if stated > max(SERVED_VERSIONS):
        return "install a newer forebay-state-api, or an older release of the plugin"
    return "install a newer release of the plugin, or an older forebay-state-api"


def _own_names(value: Any) -> set[str]:
    if isinstance(value, type):
        return {*vars(value)}
    return {*vars(type(value)), *getattr(value, "__dict__", ())}


def _wrong_options(value: Any) -> Iterator[str]:
    """Check the settings that a backend or service declares: every job resolves them."""
    from forebay_state_api.settings.resolve import CORE, Setting

    core = {setting.name for setting in CORE}
    options = value.options
    if not isinstance(options, Mapping):
        yield f"has options that are no mapping of names to settings: {shown(options)}"
    prefix = getattr(value, "options_prefix", "") or value.name
    for name, setting in options.items():
        if not isinstance(name, str) or not isinstance(setting, Setting):
            yield f"has an option {name!r} that is no Setting: {shown(setting)}"
        if f"{prefix}.{name}" in core:
            yield f"has an option that is a setting of Forebay's own: {prefix}.{name}"
        setting.default_value()
    required = getattr(value, "required_option", "")
    if required and required not in options:
        yield f"requires an option that it does not have: {required!r}"
