"""The keys of the catalog in its partition of the store; versions are decimal, so that keys order as versions do."""

from __future__ import annotations

FORMAT = b"format"
LATEST = b"latest"
EARLIEST = b"earliest"
TERM = b"term"
LOW_WATERMARK = b"low_watermark"
UPDATES = b"update/"
CHUNKS = b"chunk/"
PUBLISHED = b"published/"
PINS = b"pin/"

_DIGITS = 19


def update_key(version: int) -> bytes:
    """The key of a version's update, or of the snapshot that took its place."""
    return UPDATES + b"%0*d" % (_DIGITS, version)


def version_of(key: bytes) -> int | None:
    """The version of an update's key; `None` for another key."""
    digits = key[len(UPDATES):]
    return int(digits) if key.startswith(UPDATES) and len(digits) == _DIGITS and digits.isdigit() else None


def chunk_key(version: int, writer: str, number: int) -> bytes:
    """The key of a piece of a snapshot, private to one attempt to write it."""
    return CHUNKS + b"%0*d/%s/%06d" % (_DIGITS, version, writer.encode("ascii"), number)


def chunk_version(key: bytes) -> int | None:
    """The version of the snapshot that a chunk belongs to; `None` for another key."""
    digits = key[len(CHUNKS):len(CHUNKS) + _DIGITS]
    return int(digits) if key.startswith(CHUNKS) and len(digits) == _DIGITS and digits.isdigit() else None


def published_key(node: str, table: int, partition: int) -> bytes:
    """The key of a partition's published time on one node."""
    return PUBLISHED + node.encode() + b"/%d/%d" % (table, partition)


def pin_key(owner: str) -> bytes:
    """The key of a pin."""
    return PINS + owner.encode()
