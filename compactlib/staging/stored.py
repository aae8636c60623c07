# SPDX-License-Identifier: Apache-2.0
"""The envelope of branch records, commits and marks: magic, version, length, JSON, checksum.

`docs/formats/staging-records.md` says it to the byte.
"""

from __future__ import annotations

import json
from typing import Any

from compactlib.errors import CorruptData, InvalidInput
from compactlib.files.record_frame import RecordFrame

_BODY_OFFSET = 16


def frame_of(magic: bytes) -> RecordFrame:
    """The frame of records that begin with this magic."""
    return RecordFrame("staging record", magic, 1, "<H2xI")


def pack(frame: RecordFrame, fields: dict[str, Any]) -> bytes:
    """The stored form of plain fields: the same fields always give the same bytes. O(size).

    Raises:
        InvalidInput: a value has no JSON form: a lone surrogate is fine, an infinite number is not.
    """
    try:
        body = json.dumps(fields, separators=(",", ":"), sort_keys=True, allow_nan=False).encode("ascii")
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the values cannot be stored: {error}") from None
    return frame.encode(len(body), body=body)


def unpack(frame: RecordFrame, data: bytes, place: str) -> dict[str, Any]:
    """The fields of a stored form. O(size).

    Args:
        frame: of the records of this kind.
        data: the bytes.
        place: where they were read, for the errors.

    Raises:
        CorruptData: the bytes are not those of such a form.
        Unsupported: they were written by another release.
    """
    size, body = frame.decode(data, place)
    if size != len(body):
        raise CorruptData(path=place, offset=12, expected=f"{len(body)} bytes", found=f"{size} bytes")
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CorruptData(path=place, offset=_BODY_OFFSET, expected="JSON", found=str(error)) from error
    if not isinstance(fields, dict):
        raise CorruptData(path=place, offset=_BODY_OFFSET, expected="a JSON object", found=type(fields).__name__)
    return fields


class Fields:
    """Reads the fields of a stored form one by one, each of its type; what does not fit is `CorruptData`."""

    def __init__(self, fields: dict[str, Any], place: str) -> None:
        self._fields = dict(fields)
        self._place = place

    def take(self, name: str, *types: type) -> Any:
        """The field, of one of these types; integers of 64 bits."""
        value = self._fields.pop(name, _MISSING)
        if type(value) not in types or (type(value) is int and abs(value) > _MAX_INTEGER):
            found = "nothing" if value is _MISSING else repr(value)
            raise self._damaged(f"{name}: {' or '.join(kind.__name__ for kind in types)}", found)
        return value

    def take_texts(self, name: str) -> tuple[str, ...]:
        """The field, a list of texts."""
        values = self.take(name, list)
        if not all(type(value) is str for value in values):
            raise self._damaged(f"{name}: a list of texts", repr(values))
        return tuple(values)

    def require(self, holds: bool, expected: str) -> None:
        """Raise `CorruptData` unless it holds."""
        if not holds:
            raise self._damaged(expected, "something else")

    def end(self) -> None:
        """All fields were read."""
        if self._fields:
            raise self._damaged("no further fields", ", ".join(sorted(self._fields)))

    def _damaged(self, expected: str, found: str) -> CorruptData:
        return CorruptData(path=self._place, offset=_BODY_OFFSET, expected=expected, found=found)


_MISSING = object()
_MAX_INTEGER = 2**63
