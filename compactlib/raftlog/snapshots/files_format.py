"""The three files of a snapshot, to the byte (`docs/formats/raftlog-snapshot.md`). Pure functions."""

from __future__ import annotations

import re
import struct
from typing import Literal, TypeAlias

from compactlib.errors import CorruptData, Unsupported
from compactlib.files.checksum import crc32
from compactlib.raftlog.model.values import MAX_INDEX
from compactlib.raftlog.snapshots.model import MAX_CLUSTER_BYTES, SnapshotManifest

VERSION = 1
PART_HEAD_BYTES = 32
STATE_MAGIC = b"CLRAFSTA"
LIVE_MAGIC = b"CLRAFLIV"
MANIFEST_MAGIC = b"CLRAFMAN"

STATE_SUFFIX = ".state"
LIVE_SUFFIX = ".live"
TEMPORARY_SUFFIX = ".tmp"
INCOMING_STATE = "incoming.state"
INCOMING_MANIFEST = "incoming.manifest"

SnapshotKind: TypeAlias = Literal["snapshot", "checkpoint"]
KINDS: tuple[SnapshotKind, ...] = ("snapshot", "checkpoint")

_PART = struct.Struct("<8sHHQQ")
_MANIFEST = struct.Struct("<8sHHQQIQQIQII")
_CRC = struct.Struct("<I")
_STEM = re.compile(r"([0-9]{20})-([0-9]{20})")


def stem_of(index: int, term: int) -> str:
    """What the names of a snapshot's files begin with."""
    return f"{index:020d}-{term:020d}"


def manifest_name(index: int, term: int, kind: SnapshotKind) -> str:
    """The name of the file that puts a snapshot in force."""
    return f"{stem_of(index, term)}.{kind}"


def parse_manifest_name(name: str) -> tuple[int, int, SnapshotKind] | None:
    """Index, term and kind in the name of a manifest, `None` for any other name."""
    stem, dot, suffix = name.partition(".")
    match = _STEM.fullmatch(stem)
    kind = next((each for each in KINDS if each == suffix), None)
    if not (match and dot and kind):
        return None
    index, term = int(match[1]), int(match[2])
    # Twenty digits have room for more than 64 bits; nothing here makes such a name.
    return (index, term, kind) if max(index, term) <= MAX_INDEX else None


def is_part_name(name: str) -> bool:
    """Whether a name is one under which this module's files are made, manifests aside."""
    stem, _, suffix = name.partition(".")
    kept = {INCOMING_STATE, INCOMING_MANIFEST, INCOMING_MANIFEST + TEMPORARY_SUFFIX}
    endings = {"state", "live", *(f"{each}.tmp" for each in ("live", *KINDS))}
    return name in kept or (_STEM.fullmatch(stem) is not None and suffix in endings)


def encode_part_head(magic: bytes, index: int, term: int) -> bytes:
    """The 32 bytes before a state or a live set."""
    head = _PART.pack(magic, VERSION, 0, index, term)
    return head + _CRC.pack(crc32(head))


def check_part_head(data: bytes, magic: bytes, index: int, term: int, path: str) -> None:
    """Check the 32 bytes before a state or a live set.

    Raises:
        CorruptData: they are not whole, or belong to another snapshot.
        Unsupported: a later release wrote them.
    """
    if len(data) < PART_HEAD_BYTES:
        raise CorruptData(path=path, offset=len(data), expected=f"{PART_HEAD_BYTES} bytes", found=f"{len(data)} bytes")
    found_magic, version, zero, found_index, found_term = _PART.unpack_from(data)
    _check_magic_and_crc(data[:PART_HEAD_BYTES], magic, found_magic, path)
    _check_version(version, path)
    if version < 1 or zero or (found_index, found_term) != (index, term):
        raise CorruptData(path=path, offset=8, expected=f"version 1, 0, index {index}, term {term}",
                          found=f"{version}, {zero}, {found_index}, {found_term}")


def encode_manifest(manifest: SnapshotManifest) -> bytes:
    """The bytes of a manifest."""
    body = _MANIFEST.pack(MANIFEST_MAGIC, VERSION, 0, manifest.index, manifest.term, manifest.machine_version,
                          manifest.live_count, manifest.live_bytes, manifest.live_crc, manifest.state_bytes,
                          manifest.state_crc, len(manifest.cluster)) + manifest.cluster
    return body + _CRC.pack(crc32(body))


def decode_manifest(data: bytes, path: str) -> SnapshotManifest:
    """The inverse of `encode_manifest`.

    Raises:
        CorruptData: any check fails.
        Unsupported: a later release wrote it.
    """
    if len(data) < _MANIFEST.size + _CRC.size:
        raise CorruptData(path=path, offset=len(data), expected=f"at least {_MANIFEST.size + _CRC.size} bytes",
                          found=f"{len(data)} bytes")
    (magic, version, zero, index, term, machine_version, live_count, live_bytes, live_crc, state_bytes, state_crc,
     cluster_bytes) = _MANIFEST.unpack_from(data)
    _check_magic_and_crc(data, MANIFEST_MAGIC, magic, path)
    _check_version(version, path)
    cluster = data[_MANIFEST.size:-_CRC.size]
    if version < 1 or zero or len(cluster) != cluster_bytes or cluster_bytes > MAX_CLUSTER_BYTES:
        raise CorruptData(path=path, offset=8, expected="version 1, zeros, and as many cluster bytes as it says",
                          found=f"{version}, {zero}, {len(cluster)} of {cluster_bytes}")
    return SnapshotManifest(index=index, term=term, machine_version=machine_version, cluster=cluster,
                            live_count=live_count, live_bytes=live_bytes, live_crc=live_crc, state_bytes=state_bytes,
                            state_crc=state_crc)


def _check_magic_and_crc(data: bytes, magic: bytes, found: bytes, path: str) -> None:
    if found != magic:
        raise CorruptData(path=path, offset=0, expected=f"magic {magic!r}", found=repr(found))
    (stored,) = _CRC.unpack_from(data, len(data) - _CRC.size)
    actual = crc32(data[:-_CRC.size])
    if stored != actual:
        raise CorruptData(path=path, offset=len(data) - _CRC.size, expected=f"CRC {actual:#010x}",
                          found=f"{stored:#010x}")


def _check_version(version: int, path: str) -> None:
    if version > VERSION:
        raise Unsupported(f"{path}: snapshot format version {version}; this release reads up to {VERSION}: upgrade")
