# SPDX-License-Identifier: Apache-2.0
"""The table of planted mistakes: each is a defect that was mended once, or a line whose absence would be one."""

from __future__ import annotations

from collections.abc import Sequence

from tests.promises.planted.plant import Mistake

KILLED = "tests/promises/test_promise_power_stories.py::test_successor_builds_on_what_is_durable"
SCRIPTS = "tests/promises/test_promise_scripts.py::test_script_keeps_what_it_acknowledged"
TORN = "tests/promises/test_promise_power_stories.py::test_torn_write_stays_away"

MISTAKES: Sequence[Mistake] = (
    Mistake(
        "raftlog-leader-not-synced", "compactlib/raftlog/compaction/commit.py",
        "        raise\n    files.sync_folder(folder)\n    return merged\n",
        "        raise\n    return merged\n",
        ("segment_log-crashes",),
        "After a power failure during a compaction, entries of a merged segment are gone."),
    Mistake(
        "raftlog-names-found-not-synced", "compactlib/raftlog/store/store.py",
        "            self._sync_found()\n", "",
        ("raft_log_store-kills_and_power",),
        "Entries acknowledged after a kill are lost in a power failure, since the names below them never became durable."),
    Mistake(
        "wal-removal-not-synced", "compactlib/raftlog/wal/wal.py",
        "                self._files.unlink(path)\n            self._files.sync_folder(self._folder)\n",
        "                self._files.unlink(path)\n",
        ("raft_log_store-crashes",),
        "An older WAL file that comes back after a newer one has gone undoes acknowledged writes."),
    Mistake(
        "blob-step-found-not-synced", "compactlib/blobstore/log/open_store.py",
        "        with contextlib.closing(files.open(path)) as out:\n            out.sync()\n", "        pass\n",
        (KILLED + "[blob_store-compaction]",),
        "An opening removes the sources of a compaction whose commit was never durable, and a power failure takes that."),
    Mistake(
        "blob-names-found-not-synced", "compactlib/blobstore/log/open_store.py",
        "        sync_names(files, folder)\n", "",
        (KILLED + "[blob_store-writes]",),
        "Blobs put after a kill are lost in a power failure with the segment file whose name never became durable."),
    Mistake(
        "blob-tail-not-cut", "compactlib/blobstore/log/load_log.py",
        "                out.truncate(cut_to)\n", "                pass\n",
        (TORN + "[blob_store]",),
        "Half a record that was never acknowledged stays in the file, and is taken for damage or for a record later."),
    Mistake(
        "catalog-pins-without-conditions", "compactlib/catalog/sense/pins.py",
        "        self._log.store.transact(conditions, puts, deletes)\n",
        "        self._log.store.transact([], puts, deletes)\n",
        ("catalog-paused_owners", "catalog-lost_answers"),
        "A pin that was granted does not keep its version from being cut."),
    Mistake(
        "catalog-watermark-without-condition", "compactlib/catalog/sense/watermark.py",
        "self._store.set_if(self._partition, self._key, record, predicate)",
        "self._store.set(self._partition, self._key, record)",
        ("catalog-paused_owners", "catalog-lost_answers"),
        "The low watermark falls back: a reader begins below it and finds data gone."),
    Mistake(
        "catalog-any-term-cuts", "compactlib/catalog/log/update_log.py",
        "        if cut.term < current:\n", "        if False:\n",
        ("catalog-paused_owners",),
        "A coordinator that was replaced cuts history that its successor wants to keep."),
    Mistake(
        "catalog-pins-forgotten-unseen", "compactlib/catalog/sense/pins.py",
        "                if found is None or self._holds(found, now):\n                    return found\n",
        "                if found is None:\n                    return found\n",
        ("catalog-paused_owners",),
        "A pin that was renewed while expired ones are forgotten is forgotten too."),
    Mistake(
        "scheduler-entry-before-opening-removed", "compactlib/scheduler/service/store.py",
        "                if last and not (opens and entry.key == _key_after(last)):\n", "                if last:\n",
        ("stored_scheduler-paused_owners", "stored_scheduler-lost_answers"),
        "A former owner that wakes up late writes an entry of its own in the place of one that was removed."),
)
