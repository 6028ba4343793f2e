"""The console: a job's state and its history in the browser, from storage alone.

It reads what jobs store and asks nothing of them, so it can neither fail nor slow a job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_state_api.lazy_names import import_on_first_use

if TYPE_CHECKING or not import_on_first_use(__name__):
    from forebay_console.pages import Access as Access, application as application
    from forebay_console.watching import StateDirectory as StateDirectory
