# SPDX-License-Identifier: Apache-2.0
"""What a key is made of: the part that local folders, S3, GCS and Azure all take as it is; prefixes, ranges."""

from __future__ import annotations

import re
from collections.abc import Iterable

from compactlib._arguments import require_names, require_whole
from compactlib.objects.errors import BadKey

MAX_KEY_CHARS = 512
"""Longest key; S3 and Azure take 1024 bytes, of which a host's own prefix may need some."""
MAX_SEGMENT_CHARS = 200
"""Longest part between two slashes; file systems take 255 bytes."""

_SEGMENT = re.compile(r"[A-Za-z0-9_=+@,-][A-Za-z0-9._=+@,-]*")


def check_key(key: str) -> None:
    """Pass a key: segments of letters, digits and `._=+@,-`, joined by `/`; none is empty or begins with a dot.

    Raises:
        BadKey: it is something else, or too long; says what.
    """
    if not isinstance(key, str):
        raise BadKey(f"a key is text, found {type(key).__name__}", key=repr(key)[:100])
    if not 1 <= len(key) <= MAX_KEY_CHARS:
        raise BadKey(f"a key has 1 to {MAX_KEY_CHARS} characters, found {len(key)}: {key[:100]!r}", key=key)
    for segment in key.split("/"):
        if not _SEGMENT.fullmatch(segment) or len(segment) > MAX_SEGMENT_CHARS:
            raise BadKey(f"the part {segment!r} of key {key!r} is not 1 to {MAX_SEGMENT_CHARS} letters, digits or any "
                         f"of '._=+@,-' that do not begin with a dot", key=key)


def check_range(start: int, length: int) -> None:
    """Pass a range of an object.

    Raises:
        InvalidInput: a number is none, or negative.
    """
    require_whole("start", start)
    require_whole("length", length)


def checked_keys(keys: Iterable[str]) -> list[str]:
    """Return the keys of one `delete`.

    Raises:
        BadKey: one is no key.
        InvalidInput: `keys` is one text, which would be read as a key for each of its letters.
    """
    require_names("keys", keys)
    checked = list(keys)
    for key in checked:
        check_key(key)
    return checked


def check_prefix(prefix: str, after: str = "") -> None:
    """Pass a prefix of a key, the empty one included, and any text after which to begin.

    Raises:
        BadKey: no key can begin with it, or it is no text.
    """
    for text in (prefix, after):
        if not isinstance(text, str):
            raise BadKey(f"a prefix, and what to begin after, is text, found {type(text).__name__}",
                         key=repr(text)[:100])
    if prefix:
        check_key(prefix + "x" if prefix.endswith("/") else prefix)
