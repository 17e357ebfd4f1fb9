"""The gate for messages from pages. Only messages that the viewer's own page sends pass.

viser accepts more than its page sends: values of any type and size, properties of inputs other than their values,
files of any size, and requests to publish the viewer on the internet (`ShareUrlRequest`).
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec.msgpack
import viser

from ksim.viewer.recorder import MAX_FILE_BYTES

MAX_NUMBER = 1e6
"""Largest absolute value that a page may send for an input without a range."""
MAX_UPLOADS = 4
"""Largest number of concurrent uploads, over all pages."""
_UPLOAD = "FileTransferStartUpload"
_MAX_PARTS = 1000
_MAX_TEXT = 300
_MAX_CONTROL_BYTES = 1000
_MAX_PIXELS = 100_000
_CAMERA_VECTORS = {"wxyz": 4, "position": 3, "look_at": 3, "up_direction": 3}
_CAMERA_NUMBERS = ("fov", "near", "far")
_CAMERA_SIZES = ("image_height", "image_width")
_UPLOAD_TEXTS = ("source_component_uuid", "transfer_uuid", "filename", "mime_type")


class PageGate:
    """A filter for the messages of all pages.

    Attributes:
        inputs: Returns the input of the page that has an id, or None; set once there are inputs.
    """

    def __init__(self) -> None:
        self.inputs: Callable[[str], Any] = lambda _: None
        self._uploads: dict[object, tuple[str, int]] = {}

    def admitted(self, page: object, message: str | bytes) -> bytes | None:
        """A message for viser, if it is one that the viewer's page sends, with values that its inputs can have.

        A file that is too large becomes an empty one, so that its page learns that it was not loaded.

        `page` is the connection of the message.
        """
        if not isinstance(message, bytes):
            return None
        try:
            fields = msgspec.msgpack.decode(message)
            kind = fields.pop("type")
            if kind == _UPLOAD and fields["size_bytes"] > MAX_FILE_BYTES:
                fields |= {"size_bytes": 0, "part_count": 0}
                message = msgspec.msgpack.encode({"type": kind} | fields)
            return message if self._passes(page, kind, fields) else None
        # Whatever the decoder and a check run into: a page may have sent anything.
        except Exception:  # noqa: BLE001
            return None

    def forget(self, page: object) -> None:
        """Forgets a closed connection and its unfinished upload."""
        self._uploads.pop(page, None)

    def _passes(self, page: object, kind: str, fields: Mapping[str, Any]) -> bool:
        match kind:
            case "GuiUpdateMessage":
                return self._updates(fields)
            case "ViewerCameraMessage":
                return _is_camera(fields)
            case "FileTransferStartUpload":
                return self._starts_upload(page, fields)
            case "FileTransferPart":
                return self._continues_upload(page, fields)
        return False

    def _updates(self, fields: Mapping[str, Any]) -> bool:
        """Whether one input gets a value that it can have."""
        (name, value), *more = fields["updates"].items()
        return fields.keys() == {"uuid", "updates"} and name == "value" and not more and self._fits(fields, value)

    def _fits(self, fields: Mapping[str, Any], value: Any) -> bool:
        match self.inputs(fields["uuid"]):
            case viser.GuiSliderHandle() as slider:
                # The page rounds to its precision, which may be one step beyond an end.
                return _is_number(value, slider.min - slider.step, slider.max + slider.step)
            case viser.GuiNumberHandle() as number:
                low, high = (-MAX_NUMBER if number.min is None else number.min), number.max
                return _is_number(value, low, MAX_NUMBER if high is None else high)
            case viser.GuiDropdownHandle() | viser.GuiButtonGroupHandle() as choice:
                return isinstance(value, str) and value in choice.options
            case viser.GuiCheckboxHandle() | viser.GuiButtonHandle():
                return isinstance(value, bool)
        return False

    def _starts_upload(self, page: object, fields: Mapping[str, Any]) -> bool:
        """Whether an upload of an allowed size to an upload button may begin: the page has no other in progress."""
        size, num_parts = fields["size_bytes"], fields["part_count"]
        is_one = (
            fields.keys() == {*_UPLOAD_TEXTS, "size_bytes", "part_count"}
            and all(type(fields[name]) is str and len(fields[name]) <= _MAX_TEXT for name in _UPLOAD_TEXTS)
            and isinstance(self.inputs(fields["source_component_uuid"]), viser.GuiUploadButtonHandle)
            and type(size) is type(num_parts) is int
            and 0 <= size <= MAX_FILE_BYTES
            and 0 <= num_parts <= _MAX_PARTS
            and page not in self._uploads
            and len(self._uploads) < MAX_UPLOADS
        )
        if is_one and num_parts:
            self._uploads[page] = fields["transfer_uuid"], size
        return is_one

    def _continues_upload(self, page: object, fields: Mapping[str, Any]) -> bool:
        """Whether a part belongs to the page's upload, within the announced size."""
        name, left = self._uploads.get(page, ("", 0))
        is_part = (
            fields.keys() == {"source_component_uuid", "transfer_uuid", "part_index", "content"}
            and fields["transfer_uuid"] == name
            and isinstance(self.inputs(fields["source_component_uuid"]), viser.GuiUploadButtonHandle)
            and type(fields["part_index"]) is int
            and type(fields["content"]) is bytes
            and 0 < len(fields["content"]) <= left
        )
        if is_part:
            left -= len(fields["content"])
            self._uploads[page] = name, left
            if not left:
                self.forget(page)
        return is_part


def read_control(text: str | bytes) -> Mapping[str, Any] | None:
    """A message of the page's own script for the `Driver`, None for anything else: see `Driver.__call__`."""
    try:
        message = json.loads(text) if len(text) <= _MAX_CONTROL_BYTES else None
    except (ValueError, RecursionError):
        return None
    match message:
        case {"nudge": [index, steps]} if type(index) is int and index >= 0 and steps in (-1, 1):
            return {"nudge": [index, int(steps)]}
        case {"axes": [*axes]} if all(_is_number(x, -1, 1) for x in axes):
            return {"axes": axes}
        case {"press": str(name)}:
            return {"press": name}
    return None


def _is_number(value: Any, low: float, high: float) -> bool:
    """Whether a value is a number, finite and in a range."""
    return type(value) in (int, float) and low <= value <= high and math.isfinite(value)


def _is_camera(fields: Mapping[str, Any]) -> bool:
    return (
        fields.keys() == {*_CAMERA_VECTORS, *_CAMERA_NUMBERS, *_CAMERA_SIZES}
        and all(len(fields[name]) == size for name, size in _CAMERA_VECTORS.items())
        and all(_is_number(x, -MAX_NUMBER, MAX_NUMBER) for name in _CAMERA_VECTORS for x in fields[name])
        and all(_is_number(fields[name], 0, MAX_NUMBER) for name in _CAMERA_NUMBERS)
        and all(type(fields[name]) is int and 0 < fields[name] <= _MAX_PIXELS for name in _CAMERA_SIZES)
    )
