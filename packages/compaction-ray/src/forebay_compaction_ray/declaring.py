"""Classes of options whose fields are declared as settings: name, form, default and text once."""

from __future__ import annotations

from typing import Any

import attrs

from forebay_state_api.settings import Setting


def declared(name: str, *form: Any, **bounds: Any) -> Any:
    """Return a field with the default of a `Setting`, given what that takes."""
    setting = Setting(name, *form, **bounds)
    return attrs.field(default=setting.default_value(), metadata={Setting: setting})


def declarations(options: type[attrs.AttrsInstance]) -> dict[str, Setting]:
    """Field → setting, of those fields that are `declared`."""
    fields = attrs.fields(options)
    return {f.name: f.metadata[Setting] for f in fields if Setting in f.metadata}
