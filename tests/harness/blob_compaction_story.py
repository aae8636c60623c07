# SPDX-License-Identifier: Apache-2.0
"""The language of `promises/scenarios/blobstore/compaction_*.txt`: commands on a store, and expectations.

```
put a [ttl 5] [size 900]    delete a    undelete a    permanent a    wait 11    roll
replicated delete a version 3 [expires 20]      a record of a peer, for any state of the blob
settings purge_tombstones=true                  before anything else; or reopen with others
compact [0_0 1_0] [stopping after 100]          without names all eligible segments
reopen    hard delete    damage a
crash compact [0_0 ...] before "rename *_1.log" [losing everything]    then the store is opened again
expect records 0_1 a:put b:delete               the records of a segment, in order, or `nothing`
expect get a blob|deleted|expired|missing|damaged
expect segments 0_1 1_0    expect done freed 2    expect failed BudgetSpent    expect partial
expect left out 1_0    expect event blobstore_expired_gone records 2
```

Times count from 0; each operation takes a second, deletes are in effect after ten. Blobs have 300 bytes.
"""

from __future__ import annotations

import fnmatch
import shlex
from pathlib import Path
from typing import Any

from compactlib.blobstore import BlobCompactionReport, BlobReader, BlobStore, RecordKind
from compactlib.budget import Budget
from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError, CorruptData
from compactlib.files import Files
from compactlib.testing import RecordingFiles, record, repeat_crash
from tests.harness.blob_stores import START, flip, open_store, plan_of
from tests.harness.recording import RecordingObserver

KINDS = {"put": RecordKind.PUT, "delete": RecordKind.DELETE, "undelete": RecordKind.UNDELETE,
         "permanent": RecordKind.TTL_UPDATE}
WORDS = {kind: word for word, kind in KINDS.items()}


class Story:
    """The player of one story in a folder."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.folder = base / "store"
        self.clock = ManualClock(START)
        self.settings: dict[str, Any] = {}
        self.observer = RecordingObserver()
        self.outcome: Any = None
        self.crashes = 0
        self.rolls = 0
        self._store: BlobStore | None = None

    @property
    def store(self) -> BlobStore:
        if self._store is None:
            self._store = self._open(self.folder)
        return self._store

    def _open(self, folder: Path, files: Files | None = None) -> BlobStore:
        return open_store(folder, self.clock, files=files, observer=self.observer, **self.settings)

    def run(self, text: str) -> None:
        """Play every line; an error has its line."""
        try:
            for number, line in enumerate(text.splitlines(), 1):
                words = shlex.split(line, comments=True)
                if words:
                    try:
                        self._command(words)
                    except BaseException as error:
                        error.add_note(f"in line {number}: {line}")
                        raise
        finally:
            self.close()

    def close(self) -> None:
        """Close the store, if it is open."""
        if self._store is not None:
            self._store.close()
        self._store = None

    def _command(self, words: list[str]) -> None:
        for count in (2, 1):
            method = getattr(self, "do_" + "_".join(words[:count]), None)
            if method is not None:
                method(*words[count:])
                return
        raise AssertionError(f"not understood: {' '.join(words)}")

    # -- the store

    def do_settings(self, *settings: str) -> None:
        self.close()
        for name, text in (setting.split("=") for setting in settings):
            self.settings[name] = text == "true" if text in ("true", "false") else int(text)

    def do_put(self, blob: str, *rest: str) -> None:
        given = dict(zip(rest[::2], rest[1::2], strict=True))
        ttl = float(given["ttl"]) if "ttl" in given else None
        self.store.put(blob, bytes(int(given.get("size", 300))), ttl_seconds=ttl)
        self.clock.advance(1)

    def do_delete(self, blob: str) -> None:
        self.store.delete(blob)
        self.clock.advance(1)

    def do_undelete(self, blob: str) -> None:
        self.store.undelete(blob)
        self.clock.advance(1)

    def do_permanent(self, blob: str) -> None:
        self.store.ttl_update(blob)
        self.clock.advance(1)

    def do_replicated(self, word: str, blob: str, *rest: str) -> None:
        given = dict(zip(rest[::2], map(int, rest[1::2]), strict=True))
        expires = START + given["expires"] if "expires" in given else None
        self.store.append_replicated(KINDS[word], blob, b"x" * 9 if word == "put" else b"", op_time=self.clock.now(),
                                     life_version=given.get("version", 0), expires_at=expires)
        self.clock.advance(1)

    def do_wait(self, seconds: str) -> None:
        self.clock.advance(float(seconds))

    def do_roll(self) -> None:
        """Seal the active segment; put one blob into the next, which the journal then covers."""
        self.store.close_active_segment()
        self.rolls += 1
        self.store.put(f"roll {self.rolls}", b"")

    def do_reopen(self) -> None:
        self.close()
        assert self.store is not None

    def do_damage(self, blob: str) -> None:
        with self._reader() as reader:
            entry = reader.snapshot().history(blob.encode())[0]
        flip(self.folder / entry.segment.log_file, entry.end - 5)

    def do_hard_delete(self) -> None:
        settings, self.settings = self.settings, {**self.settings, "hard_delete": True,
                                                  "hard_delete_bytes_per_second": None}
        self.close()
        assert not self.store.reclaim().is_partial
        self.close()
        self.settings = settings

    def _reader(self) -> BlobReader:
        self.store.flush()
        return BlobReader(self.folder, clock=self.clock)

    # -- compactions

    def do_compact(self, *words: str) -> None:
        chosen, budget = list(words), Budget()
        if "stopping" in chosen:
            place = chosen.index("stopping")
            budget, chosen = Budget(total_bytes=int(chosen[place + 2])), chosen[:place]
        try:
            self.outcome = self.store.compact(plan_of(self.store, chosen or None), budget=budget)
        except CompactlibError as error:
            self.outcome = error

    def do_crash_compact(self, *words: str) -> None:
        place = words.index("before")
        chosen, glob = words[:place], words[place + 1]
        self.close()

        def work(folder: Path, files: RecordingFiles) -> None:
            with self._open(folder / "store", files) as store:
                store.compact(plan_of(store, chosen or None), budget=Budget())

        self.folder.parent.mkdir(exist_ok=True)
        recording = record(self.folder.parent, work)
        operations = [str(operation) for operation in recording.operations]
        point = next((at for at, text in enumerate(operations) if fnmatch.fnmatch(text, glob)), None)
        assert point is not None, f"no operation matches {glob!r} among {operations}"
        self.crashes += 1
        parent = self.base / f"after-crash-{self.crashes}"
        repeat_crash(recording, {0: point, 1: int("losing" in words)}, parent)
        self.folder = parent / "store"

    # -- expectations

    def do_expect_records(self, segment: str, *records: str) -> None:
        with self._reader() as reader:
            snapshot = reader.snapshot()
        found = [f"{entry.id.decode()}:{WORDS[RecordKind(entry.kind)]}" for info in snapshot.segments
                 if str(info.name) == segment for entry in info.entries()]
        assert (found or ["nothing"]) == list(records), found

    def do_expect_get(self, blob: str, what: str) -> None:
        try:
            found = type(self.store.get(blob)).__name__.lower()
        except CorruptData:
            found = "damaged"
        assert found == what, found

    def do_expect_segments(self, *segments: str) -> None:
        with self._reader() as reader:
            found = [str(info.name) for info in reader.snapshot().segments][:-1]
        assert found == list(segments), found

    def do_expect_done(self, _: str, count: str) -> None:
        assert isinstance(self.outcome, BlobCompactionReport), self.outcome
        assert not self.outcome.is_partial, self.outcome
        assert self.outcome.freed_segments == int(count), self.outcome

    def do_expect_partial(self) -> None:
        assert isinstance(self.outcome, BlobCompactionReport), self.outcome
        assert self.outcome.is_partial, self.outcome

    def do_expect_failed(self, name: str) -> None:
        assert type(self.outcome).__name__ == name, self.outcome

    def do_expect_left(self, _: str, *segments: str) -> None:
        assert [str(name) for name in self.outcome.left_out] == list(segments), self.outcome

    def do_expect_event(self, event: str, field: str, value: str) -> None:
        found = [fields.get(field) for name, fields in self.observer.events if name == event]
        assert int(value) in found, self.observer.events
