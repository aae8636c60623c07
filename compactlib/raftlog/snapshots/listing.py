# SPDX-License-Identifier: Apache-2.0
"""Listing a folder of snapshots: which are in force, and which files a crash has left behind."""

from __future__ import annotations

import os
import stat

import attrs

from compactlib.errors import CorruptData, StorageError
from compactlib.files.disk import list_folder, look_at, read_if_there
from compactlib.indexset import IndexSet
from compactlib.raftlog.errors import LiveSetLost
from compactlib.raftlog.snapshots.files_format import (
    INCOMING_MANIFEST,
    INCOMING_STATE,
    LIVE_HEAD,
    LIVE_SUFFIX,
    PART_HEAD_BYTES,
    TEMPORARY_SUFFIX,
    SnapshotKind,
    check_part_head,
    decode_manifest,
    is_part_name,
    manifest_name,
    parse_manifest_name,
    stem_of,
)
from compactlib.raftlog.snapshots.model import SnapshotManifest


@attrs.frozen(order=True)
class Listed:
    """A manifest, by what its name says."""

    index: int
    term: int
    kind: SnapshotKind

    def path(self, folder: str) -> str:
        """Its file."""
        return os.path.join(folder, manifest_name(self.index, self.term, self.kind))


def listed_in(folder: str, kind: SnapshotKind) -> list[Listed]:
    """What is in force, oldest first; checkpoints only above the newest snapshot.

    Raises:
        StorageError: the folder cannot be read.
    """
    parsed = _manifests(folder)
    snapshots = sorted(listed for listed in parsed if listed.kind == "snapshot")
    if kind == "snapshot":
        return snapshots
    above = snapshots[-1].index if snapshots else -1
    return sorted(listed for listed in parsed if listed.kind == "checkpoint" and listed.index > above)


def _manifests(folder: str) -> list[Listed]:
    """What is named as a manifest, and is an ordinary file: a link or a folder is nothing of ours."""
    return [Listed(*found) for name in list_folder(folder)
            if (found := parse_manifest_name(name)) and _is_file(os.path.join(folder, name))]


def _is_file(path: str) -> bool:
    found = look_at(path)
    return found is not None and stat.S_ISREG(found.st_mode)


def superseded_in(folder: str) -> list[Listed]:
    """Snapshots older than the newest one, and checkpoints that are not above it."""
    parsed = _manifests(folder)
    newest = max((listed for listed in parsed if listed.kind == "snapshot"), default=None)
    return sorted(listed for listed in parsed if newest and listed != newest and listed.index <= newest.index)


def read_manifest(folder: str, listed: Listed) -> SnapshotManifest:
    """The manifest of a snapshot or checkpoint.

    Raises:
        CorruptData: it is damaged, or that of another one.
        Unsupported: a later release wrote it.
        StorageError: it cannot be read.
    """
    path = listed.path(folder)
    try:
        with open(path, "rb") as file:
            manifest = decode_manifest(file.read(), path)
    except OSError as error:
        raise StorageError.from_os(error, "read", path) from error
    if (manifest.index, manifest.term) != (listed.index, listed.term):
        raise CorruptData(path=path, offset=12, expected=f"index {listed.index}, term {listed.term}",
                          found=f"{manifest.index}, {manifest.term}")
    return manifest


def read_live_set(folder: str, manifest: SnapshotManifest) -> IndexSet:
    """The live set of a snapshot or checkpoint.

    Raises:
        LiveSetLost: it is missing or damaged. It is never taken for empty.
        StorageError: it cannot be read.
    """
    path = os.path.join(folder, stem_of(manifest.index, manifest.term) + LIVE_SUFFIX)
    try:
        data = read_if_there(path)
        if data is not None:
            check_part_head(data, LIVE_HEAD, manifest.index, manifest.term, path)
            return manifest.live_set(data[PART_HEAD_BYTES:], path=path)
        raise LiveSetLost(path=path, offset=0, expected=f"the live set of snapshot {manifest.index}", found="no file")
    except LiveSetLost:
        raise
    except CorruptData as error:
        raise LiveSetLost(path=path, offset=error.offset, expected=error.expected, found=error.found) from error


def strays_in(folder: str, *, keep_incoming: bool) -> list[str]:
    """Files that a crash left and that nothing in force needs; files of others are never among them."""
    names = list_folder(folder)
    in_force = {name.partition(".")[0] for name in names if parse_manifest_name(name)}
    going_on = {INCOMING_STATE, INCOMING_MANIFEST} if keep_incoming else set()
    return [os.path.join(folder, name) for name in names if is_part_name(name) and name not in going_on
            and (name.endswith(TEMPORARY_SUFFIX) or name.partition(".")[0] not in in_force)
            and not is_own_folder(os.path.join(folder, name))]


def is_own_folder(path: str) -> bool:
    """Whether a path is a folder and no link to one: nothing that is made here, whatever its name."""
    found = look_at(path)
    return found is not None and stat.S_ISDIR(found.st_mode)
