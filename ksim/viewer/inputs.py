"""Numbers on the page that both its users and the viewer change."""

import threading
from collections.abc import Callable
from typing import Any


class NumberInput:
    """A slider or a field of the page.

    viser writes a page's value into the handle, and calls `on_update` later, in a separate thread. Until then the
    viewer must not overwrite the value.

    Attributes:
        handle: viser's handle.
    """

    def __init__(self, handle: Any, get: Callable[[], float], take: Callable[[float], None]) -> None:
        """An input of a number.

        Args:
            handle: viser's handle, with the number in it.
            get: Returns the number.
            take: Called with the number that a page has sent.
        """
        self.handle = handle
        self._get, self._take = get, take
        self._lock = threading.Lock()
        self._heard: float = handle.value
        self._shown = get()
        handle.on_update(self._on_update)

    def update(self) -> None:
        """Shows the number if the viewer has changed it."""
        with self._lock:
            number = self._get()
            if number != self._shown and self.handle.value == self._heard:
                self.handle.value = self._shown = number
                self._heard = self.handle.value

    def _on_update(self, event: Any) -> None:
        if event.client is None:  # what `update` has shown
            return
        with self._lock:
            self._heard = self.handle.value
            self._take(self._heard)
            self._shown = self._get()  # may be rounded to float32; the page need not show that
