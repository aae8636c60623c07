# SPDX-License-Identifier: Apache-2.0
"""The three files of a snapshot, to the byte (`docs/formats/raftlog-snapshot.md`). Pure functions."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from compactlib.errors import CorruptData
from compactlib.files.record_frame import RecordFrame
from compactlib.raftlog.model.values import MAX_INDEX
from compactlib.raftlog.snapshots.model import MAX_CLUSTER_BYTES, SnapshotManifest

VERSION = 1
PART_HEAD_BYTES = 32

STATE_SUFFIX = ".state"
LIVE_SUFFIX = ".live"
TEMPORARY_SUFFIX = ".tmp"
INCOMING_STATE = "incoming.state"
INCOMING_MANIFEST = "incoming.manifest"
INCOMING_ENTRIES = "incoming.entries"

SnapshotKind: TypeAlias = Literal["snapshot", "checkpoint"]
KINDS: tuple[SnapshotKind, ...] = ("snapshot", "checkpoint")

STATE_HEAD = RecordFrame("snapshot format", b"CLRAFSTA", VERSION, "<H2xQQ")
"""Index and term: the 32 bytes before a state."""
LIVE_HEAD = RecordFrame("snapshot format", b"CLRAFLIV", VERSION, "<H2xQQ")
"""Index and term: the 32 bytes before a live set."""
_MANIFEST = RecordFrame("snapshot format", b"CLRAFMAN", VERSION, "<H2xQQIQQIQII")
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
    kept = {INCOMING_STATE, INCOMING_MANIFEST, INCOMING_ENTRIES, INCOMING_MANIFEST + TEMPORARY_SUFFIX}
    endings = {"state", "live", *(f"{each}.tmp" for each in ("live", *KINDS))}
    return name in kept or (_STEM.fullmatch(stem) is not None and suffix in endings)


def check_part_head(data: bytes, head: RecordFrame, index: int, term: int, path: str) -> None:
    """Check the 32 bytes before a state or a live set.

    Raises:
        CorruptData: they are not whole, or belong to another snapshot.
        Unsupported: another release wrote them.
    """
    found = head.decode_header(data, path)
    if found != (index, term):
        raise CorruptData(path=path, offset=12, expected=f"index {index}, term {term}",
                          found=f"index {found[0]}, term {found[1]}")


def encode_manifest(manifest: SnapshotManifest) -> bytes:
    """The bytes of a manifest."""
    return _MANIFEST.encode(manifest.index, manifest.term, manifest.machine_version, manifest.live_count,
                            manifest.live_bytes, manifest.live_crc, manifest.state_bytes, manifest.state_crc,
                            len(manifest.cluster), body=manifest.cluster)


def decode_manifest(data: bytes, path: str) -> SnapshotManifest:
    """The inverse of `encode_manifest`.

    Raises:
        CorruptData: any check fails.
        Unsupported: another release wrote it.
    """
    (index, term, machine_version, live_count, live_bytes, live_crc, state_bytes, state_crc, cluster_bytes,
     cluster) = _MANIFEST.decode(data, path)
    if len(cluster) != cluster_bytes or cluster_bytes > MAX_CLUSTER_BYTES:
        raise CorruptData(path=path, offset=12, expected="as many cluster bytes as it says",
                          found=f"{len(cluster)} of {cluster_bytes}")
    return SnapshotManifest(index=index, term=term, machine_version=machine_version, cluster=cluster,
                            live_count=live_count, live_bytes=live_bytes, live_crc=live_crc, state_bytes=state_bytes,
                            state_crc=state_crc)
