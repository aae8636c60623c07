# SPDX-License-Identifier: Apache-2.0
"""The stored form of branch records, commits, marks and owners: magic, version, length, JSON, checksum.

`docs/formats/staging-records.md` describes each byte.
"""

from __future__ import annotations

import json
from typing import Any, Generic, TypeVar

from compactlib.codec import FieldError, JsonCodec
from compactlib.errors import CorruptData
from compactlib.files.record_frame import RecordFrame

T = TypeVar("T")

_BODY_OFFSET = 16


class StoredForm(Generic[T]):
    """Turns values of one attrs class into bytes and back: equal values give equal bytes.

    Args:
        magic: 8 bytes.
        kind: the class; its fields have no defaults, so that each is stored.
    """

    def __init__(self, magic: bytes, kind: type[T]) -> None:
        self._frame = RecordFrame("staging record", magic, 1, "<H2xI")
        self._codec: JsonCodec[T] = JsonCodec(kind)

    def encode(self, value: T) -> bytes:
        """Return the stored form of a value. O(size).

        Raises:
            InvalidInput: a field does not fit its type.
        """
        body = json.dumps(self._codec.to_plain(value), separators=(",", ":"), sort_keys=True).encode("ascii")
        return self._frame.encode(len(body), body=body)

    def decode(self, data: bytes, place: str) -> T:
        """Return the value of a stored form; `place` names its cell in errors. O(size).

        Raises:
            CorruptData: the bytes are not those of such a form.
            Unsupported: another release wrote them.
        """
        size, body = self._frame.decode(data, place)
        if size != len(body):
            raise CorruptData(path=place, offset=12, expected=f"{len(body)} bytes", found=f"{size} bytes")
        try:
            return self._codec.from_plain(json.loads(body))
        except FieldError as error:
            raise damaged(place, f"{error.field or 'the record'}: {error.expected}", error.found) from error
        except (ValueError, RecursionError) as error:
            raise damaged(place, "JSON", str(error)) from error


def damaged(place: str, expected: str, found: Any) -> CorruptData:
    """Return the error of a whole stored form with an impossible value."""
    return CorruptData(path=place, offset=_BODY_OFFSET, expected=expected, found=str(found))
