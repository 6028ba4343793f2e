"""Templates to pages. Everything that they show is escaped."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from forebay_console.pages.formats import FILTERS


def environment() -> Environment:
    """Return the templates of the package."""
    found = Environment(
        loader=PackageLoader("forebay_console.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(FILTERS)
    return found


class Templates:
    """Renders templates with what all pages share."""

    def __init__(self, shared: Mapping[str, Any]) -> None:
        self._environment: Final = environment()
        self._environment.globals.update(shared)

    def page(
        self, request: Request, template: str, content: Mapping[str, Any], status: int = 200
    ) -> Response:
        """Return a page, or that it has not changed since the browser last got it."""
        text = self._environment.get_template(template).render(request=request, **content)
        tag = f'"{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}"'
        headers = {"ETag": tag}
        if status == 200 and request.headers.get("if-none-match") == tag:  # noqa: PLR2004 - OK
            return Response(status_code=304, headers=headers)
        return HTMLResponse(text, status_code=status, headers=headers)
