# SPDX-License-Identifier: Apache-2.0
"""Plays stories about a store; each line is a command, and `expect` lines have the result of the command before.

    put ID SIZE [ttl SECONDS]       delete ID       undelete ID       ttl ID       get ID [deleted] [expired]
    wait SECONDS                    close           kill              lose index   flip SEGMENT OFFSET
    compact POLICY                  roll            segments          damage       follow

A `#` begins a comment. Results are words (`blob 100 life 1`, `deleted`, `BlobExists`, ...); without an `expect` line,
any result but an error is right.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from compactlib.blobstore import (
    Blob,
    BlobReader,
    BlobStore,
    BlobStoreConfig,
    CompactAll,
    Deleted,
    Expired,
    GetOptions,
    ReplicationToken,
)
from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError, InvalidInput

CONFIG = BlobStoreConfig(capacity_bytes=1 << 14, segment_bytes=1 << 10, journal_max_entries=0,
                         compaction_bytes_per_second=None,
                         deleted_retention_seconds=100.0, ttl_update_buffer_seconds=10.0)
POLICIES = {"compact_all": CompactAll(min_used_fraction=0.0)}


class StoreStory:
    """A store in a folder, and the result of the last command."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "0"
        self._clock = ManualClock(1000.0)
        self._store = self._opened()
        self._token: ReplicationToken | None = None
        self._lives = 0

    def _opened(self) -> BlobStore:
        return BlobStore(self._folder, CONFIG, clock=self._clock)

    def run(self, text: str) -> None:
        """Play all lines; an error has the line."""
        answer: str | None = None
        for number, line in enumerate(text.splitlines(), 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            try:
                if words[0] == "expect":
                    assert answer == " ".join(words[1:])
                    answer = None
                    continue
                assert not (answer or "")[:1].isupper(), f"nobody expected {answer}"
                answer = self._play(words)
            except Exception as error:
                error.add_note(f"in line {number}: {line}")
                raise
        self._store.audit()
        self._store.close()

    def _play(self, words: list[str]) -> str:
        name, *rest = words
        command: Callable[..., str] | None = getattr(self, f"_do_{name}", None)
        if command is None:
            raise InvalidInput(f"{name!r} is no command of a story")
        try:
            return command(*rest)
        except CompactlibError as error:
            return type(error).__name__

    def _do_put(self, blob_id: str, size: str, *ttl: str) -> str:
        self._store.put(blob_id, blob_id.encode()[:1] * int(size), ttl_seconds=float(ttl[1]) if ttl else None)
        return "done"

    def _do_delete(self, blob_id: str) -> str:
        return f"life {self._store.delete(blob_id).life_version}"

    def _do_undelete(self, blob_id: str) -> str:
        return f"life {self._store.undelete(blob_id).life_version}"

    def _do_ttl(self, blob_id: str) -> str:
        self._store.ttl_update(blob_id)
        return "done"

    def _do_get(self, blob_id: str, *which: str) -> str:
        answer = self._store.get(blob_id, GetOptions(include_deleted="deleted" in which,
                                                     include_expired="expired" in which))
        match answer:
            case Blob(info, content):
                assert content == blob_id.encode()[:1] * info.size_bytes
                return f"blob {info.size_bytes} life {info.life_version}"
            case Deleted(content_gone=gone):
                return "deleted, content gone" if gone else "deleted"
            case Expired():
                return "expired"
        return "missing"

    def _do_wait(self, seconds: str) -> str:
        self._clock.advance(float(seconds))
        return "done"

    def _do_close(self) -> str:
        self._store.close()
        self._store = self._opened()
        return "done"

    def _do_kill(self) -> str:
        """End the process; its writes are in the folder."""
        self._lives += 1
        again = self._folder.with_name(str(self._lives))
        shutil.copytree(self._folder, again)
        self._store.close()
        self._folder = again
        self._store = self._opened()
        return "done"

    def _do_lose(self, _: str) -> str:
        self._store.close()
        for path in self._folder.glob("*.index"):
            path.unlink()
        self._store = self._opened()
        return "done"

    def _do_flip(self, segment: str, offset: str) -> str:
        self._store.close()
        path = self._folder / f"{segment}.log"
        data = bytearray(path.read_bytes())
        data[int(offset)] ^= 1
        path.write_bytes(data)
        self._store = self._opened()
        return "done"

    def _do_compact(self, policy: str) -> str:
        report = self._store.compact(policy=POLICIES[policy])
        return "nothing" if report.is_empty else f"freed {report.freed_segments}"

    def _do_roll(self) -> str:
        self._store.close_active_segment()
        return "done"

    def _do_segments(self) -> str:
        with BlobReader(self._folder) as reader:
            return " ".join(f"{info.name}:{info.records}" for info in reader.snapshot().segments)

    def _do_damage(self) -> str:
        return " ".join(f"{Path(error.path).name}:{error.offset}" for error in self._store.recovery.damage) or "none"

    def _do_follow(self) -> str:
        """Return the changes that a polling peer receives."""
        found = self._store.entries_since(self._token)
        self._token = found.token
        return " ".join(f"{entry.id.decode()}{'(deleted)' if entry.is_deleted else ''}" for entry in found.entries) or (
            "nothing")
