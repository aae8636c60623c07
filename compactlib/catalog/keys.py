# SPDX-License-Identifier: Apache-2.0
"""The keys of the catalog in its partition of the store; versions are decimal, so that keys order as versions do."""

from __future__ import annotations

from urllib.parse import quote

FORMAT = b"format"
LATEST = b"latest"
EARLIEST = b"earliest"
TERM = b"term"
COORDINATOR = b"coordinator"
MEMBERS = b"members"
PINS = b"pins"
UPDATES = b"update/"
PIECES = b"piece/"
LOW_WATERMARK = b"low_watermark/"
PUBLISHED = b"published/"

_DIGITS = 19


def update_key(version: int) -> bytes:
    """Return the key of a version's update, or of the snapshot that replaced it."""
    return UPDATES + b"%0*d" % (_DIGITS, version)


def piece_key(version: int, writer: str, number: int) -> bytes:
    """Return the key of a piece of a snapshot, private to an attempt to write the snapshot."""
    return PIECES + b"%0*d/%s/%06d" % (_DIGITS, version, writer.encode("ascii"), number)


def version_of(key: bytes, prefix: bytes = UPDATES) -> int | None:
    """Return the version in the key of an update or of a piece; `None` for another key."""
    digits = key[len(prefix):len(prefix) + _DIGITS]
    is_whole = prefix == PIECES or len(key) == len(prefix) + _DIGITS
    return int(digits) if is_whole and len(digits) == _DIGITS and digits.isdigit() else None


def published_key(node: str, table: int, partition: int) -> bytes:
    """Return the key of a partition's published time on a node."""
    return PUBLISHED + _quoted(node) + b"/%d/%d" % (table, partition)


def low_watermark_key(node: str) -> bytes:
    """Return the key of a node's low watermark."""
    return LOW_WATERMARK + _quoted(node)


def _quoted(name: str) -> bytes:
    # A node name with a slash must not collide with the keys of another node.
    return quote(name, safe="").encode()
