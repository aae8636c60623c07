"""The envelope of branch records, commits and marks: magic, version, length, JSON, checksum.

`docs/formats/staging-records.md` says it to the byte.
"""

from __future__ import annotations

import json
from typing import Any

from compactlib.errors import CorruptData, InvalidInput, Unsupported
from compactlib.files.record_frame import BODY_OFFSET, framed, unframed

VERSION = 1
"""The newest version of the stored forms that this release reads, and the one it writes."""


def pack(magic: bytes, fields: dict[str, Any]) -> bytes:
    """The stored form of plain fields: the same fields always give the same bytes. O(size).

    Raises:
        InvalidInput: a value has no JSON form: a lone surrogate is fine, an infinite number is not.
    """
    try:
        body = json.dumps(fields, separators=(",", ":"), sort_keys=True, allow_nan=False).encode("ascii")
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the values cannot be stored: {error}") from None
    return framed(magic, VERSION, 0, body)


def unpack(magic: bytes, data: bytes, place: str) -> dict[str, Any]:
    """The fields of a stored form. O(size).

    Args:
        magic: what it must be.
        data: the bytes.
        place: where they were read, for the errors.

    Raises:
        CorruptData: the bytes are not those of such a form.
        Unsupported: they were written by a newer release.
    """
    frame = unframed(data, magic, place)
    if frame.version > VERSION:
        raise Unsupported(f"{place}: version {frame.version} of the staging area's records; this release reads up to "
                          f"{VERSION}: upgrade")
    if frame.version < 1 or frame.tag or frame.stated_bytes != len(frame.body):
        raise CorruptData(path=place, offset=8, expected=f"version 1, flags 0, {len(frame.body)} bytes",
                          found=f"version {frame.version}, flags {frame.tag}, {frame.stated_bytes} bytes")
    try:
        fields = json.loads(frame.body)
    except (ValueError, RecursionError) as error:
        raise CorruptData(path=place, offset=BODY_OFFSET, expected="JSON", found=str(error)) from error
    if not isinstance(fields, dict):
        raise CorruptData(path=place, offset=BODY_OFFSET, expected="a JSON object", found=type(fields).__name__)
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
        return CorruptData(path=self._place, offset=BODY_OFFSET, expected=expected, found=found)


_MISSING = object()
_MAX_INTEGER = 2**63
