# SPDX-License-Identifier: Apache-2.0
"""The keys of the catalog in its partition of the store; versions are decimal, so that keys order as versions do."""

from __future__ import annotations

from urllib.parse import quote

FORMAT = b"format"
LATEST = b"latest"
EARLIEST = b"earliest"
TERM = b"term"
COORDINATOR = b"coordinator"
LOW_WATERMARK = b"low_watermark/"
UPDATES = b"update/"
CHUNKS = b"chunk/"
PUBLISHED = b"published/"
PUBLISHER = b"publisher/"
PINS = b"pin/"
PIN_EPOCH = b"pins"

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
    return published_prefix(node) + b"%d/%d" % (table, partition)


def published_prefix(node: str) -> bytes:
    """What the keys of one node's published times begin with."""
    return PUBLISHED + _quoted(node) + b"/"


def published_place(key: bytes) -> tuple[int, int]:
    """The table's id and the partition's number in the key of a published time."""
    _, table, partition = key.rsplit(b"/", 2)
    return int(table), int(partition)


def publisher_key(node: str) -> bytes:
    """The key that says which life of a node may write and delete its published times."""
    return PUBLISHER + _quoted(node)


def low_watermark_key(node: str) -> bytes:
    """The key of a node's low watermark."""
    return LOW_WATERMARK + _quoted(node)


def pin_key(owner: str) -> bytes:
    """The key of a pin."""
    return PINS + _quoted(owner)


def _quoted(name: str) -> bytes:
    # A name with a slash must not reach into the keys of another.
    return quote(name, safe="").encode()
