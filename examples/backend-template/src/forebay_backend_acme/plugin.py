"""The plugin that the entry point names; it loads the backend when one is needed."""

from __future__ import annotations

from forebay_state_api.plugins import hookimpl


@hookimpl
def forebay_state_backends():
    from forebay_backend_acme.backend import AcmeBackend

    return AcmeBackend
