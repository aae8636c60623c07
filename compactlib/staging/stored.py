"""The envelope of branch records, commits and marks: magic, version, length, JSON, checksum.

`docs/formats/staging-records.md` says it to the byte.
"""

from __future__ import annotations

import json
import struct
from typing import Any

from compactlib.checksum import crc32
from compactlib.errors import CorruptData, InvalidInput, Unsupported

VERSION = 1
"""The newest version of the stored forms that this release reads, and the one it writes."""

_HEAD = struct.Struct("<8sHHI")
_CRC = struct.Struct("<I")


def pack(magic: bytes, fields: dict[str, Any]) -> bytes:
    """The stored form of plain fields: the same fields always give the same bytes. O(size).

    Raises:
        InvalidInput: a value has no JSON form: a lone surrogate is fine, an infinite number is not.
    """
    try:
        body = json.dumps(fields, separators=(",", ":"), sort_keys=True, allow_nan=False).encode("ascii")
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the values cannot be stored: {error}") from None
    data = _HEAD.pack(magic, VERSION, 0, len(body)) + body
    return data + _CRC.pack(crc32(data))


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
    if len(data) < _HEAD.size + _CRC.size:
        raise CorruptData(path=place, offset=len(data), expected=f"at least {_HEAD.size + _CRC.size} bytes",
                          found=f"{len(data)} bytes")
    found_magic, version, flags, size = _HEAD.unpack_from(data)
    if found_magic != magic:
        raise CorruptData(path=place, offset=0, expected=f"magic {magic!r}", found=repr(found_magic))
    end = len(data) - _CRC.size
    (stored,) = _CRC.unpack_from(data, end)
    actual = crc32(memoryview(data)[:end])
    if stored != actual:
        raise CorruptData(path=place, offset=end, expected=f"CRC {actual:#010x}", found=f"{stored:#010x}")
    if version > VERSION:
        raise Unsupported(f"{place}: version {version} of the staging area's records; this release reads up to "
                          f"{VERSION}: upgrade")
    if version < 1 or flags or _HEAD.size + size != end:
        raise CorruptData(path=place, offset=8, expected=f"version 1, flags 0, {end - _HEAD.size} bytes",
                          found=f"version {version}, flags {flags}, {size} bytes")
    try:
        fields = json.loads(data[_HEAD.size:end])
    except (ValueError, RecursionError) as error:
        raise CorruptData(path=place, offset=_HEAD.size, expected="JSON", found=str(error)) from error
    if not isinstance(fields, dict):
        raise CorruptData(path=place, offset=_HEAD.size, expected="a JSON object", found=type(fields).__name__)
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
        return CorruptData(path=self._place, offset=_HEAD.size, expected=expected, found=found)


_MISSING = object()
_MAX_INTEGER = 2**63
