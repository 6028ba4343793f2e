"""`HeldPin`: a pin that is renewed until it is released, also while nobody uses the snapshot."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from forebay_state_api.threads import start_thread

if TYPE_CHECKING:
    from forebay_engine.versions.choosing.pins import Pin

_log = logging.getLogger(__name__)


class HeldPin:
    """Renews a pin from a thread of its own, which ends with `abandon` or with the process.

    A process that was suspended for longer than the lease renews the pin too late. So each renewal
    asks whether the version is still there.
    """

    def __init__(self, pin: Pin, every_s: float, is_stored: Callable[[], bool]) -> None:
        """``is_stored`` returns whether the version can still be opened.

        Raises `NoThreadError` if the process cannot have another thread; the pin stays then.
        """
        self._pin: Final = pin
        self._every_s: Final = every_s
        self._is_stored: Final = is_stored
        self._ended: Final = threading.Event()
        self._renewing: Final = threading.Lock()
        self.is_lost = False
        """Whether the version was deleted, because the pin had expired."""
        start_thread(threading.Thread(target=self._run, name="forebay-pin", daemon=True))

    def release(self) -> None:
        """Delete the pin. Safe to call twice."""
        self.abandon()
        with self._renewing:  # a renewal that has begun would leave its pin behind
            self._pin.close()

    def abandon(self) -> None:
        """Renew the pin no more: it expires, unless it is released before."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            with self._renewing:
                if self._ended.is_set():
                    return
                try:
                    self._pin.renew()
                    self.is_lost = not self._is_stored()
                except Exception as fault:  # noqa: BLE001 - the next renewal may succeed
                    _log.warning("a pin on %s was not renewed: %s", self._pin, fault)
