# SPDX-License-Identifier: Apache-2.0
"""The table of planted mistakes: each is a defect that was mended once, or a line whose absence would be one."""

from __future__ import annotations

from collections.abc import Sequence

from tests.promises.planted.plant import Mistake

KILLED = "tests/promises/test_promise_power_stories.py::test_successor_builds_on_durable_state"
LOSSES = "tests/promises/test_promise_power_stories.py::test_change_survives_any_loss"
SCRIPTS = "tests/promises/test_promise_scripts.py::test_script_keeps_its_acknowledged_state"
LEFTOVERS = "tests/promises/staging/test_staging_leftovers.py::"
PAIRS = "tests/promises/staging/test_staging_interleavings.py::test_every_pair_of_operations"
TRUNCATED = "tests/promises/raftlog/test_raftlog_truncation.py::test_truncation_survives_a_power_failure"
TRUNCATED_STORE = "tests/promises/raftlog/test_raftlog_truncation.py::test_cut_of_a_store_survives_a_power_failure"
HOLES = "tests/promises/raftlog/test_raftlog_holes.py::"
RECEIVED = "tests/promises/raftlog/test_raftlog_received_snapshots.py::"
TORN = "tests/promises/test_promise_power_stories.py::test_torn_write_stays_away"

MISTAKES: Sequence[Mistake] = (
    Mistake(
        "raftlog-leader-not-synced", "compactlib/raftlog/compaction/commit.py",
        "                files.unlink(compacting)\n"
        "        raise\n"
        "    files.sync_folder(folder)\n",
        "                files.unlink(compacting)\n"
        "        raise\n",
        ("segment_log-crashes",),
        "After a power failure during a compaction, entries of a merged segment are gone."),
    Mistake(
        "raftlog-names-found-not-synced", "compactlib/raftlog/store.py",
        "        sync_names(self._files, self._folder)\n"
        "        self._files.sync_folder(self._wal_folder)\n"
        "        self._files.sync_folder(self._logs_folder)\n",
        "",
        (KILLED + "[little-raft_log_store-opening]",),
        "Entries acknowledged after a kill are lost in a power failure, since the names below them never "
        "became durable."),
    Mistake(
        "wal-removal-not-synced", "compactlib/raftlog/wal/wal.py",
        "                self._files.unlink(path)\n"
        "            self._files.sync_folder(self._folder)\n",
        "                self._files.unlink(path)\n",
        ("raft_log_store-crashes",),
        "An older WAL file that comes back after a newer one has gone undoes acknowledged writes."),
    Mistake(
        "blob-list-found-not-written-anew", "compactlib/blobstore/opening.py",
        "        lists.write(listed)\n",
        "        pass\n",
        (KILLED + "[little-blob_store-compaction]",),
        "An opening removes the sources of a compaction whose commit was never durable, and a power failure "
        "takes that."),
    Mistake(
        "blob-names-found-not-synced", "compactlib/blobstore/opening.py",
        "    sync_names(files, folder)\n",
        "",
        ("tests/promises/blobstore/test_blobstore_found_names.py",),
        "Blobs put after a kill are lost in a power failure with the store's folder, and a record that is being "
        "erased is damage."),
    Mistake(
        "blob-tail-not-cut", "compactlib/blobstore/opening.py",
        "            out.truncate(active.segment.end)\n",
        "            pass\n",
        (TORN + "[blob_store]",),
        "Half a record that was never acknowledged stays in the file, and is taken for damage or for a record "
        "later."),
    Mistake(
        "catalog-pins-without-conditions", "compactlib/kv/cell.py",
        "transact({**unchanged(self.cells, found), **wanted.conditions}, ",
        "transact({}, ",
        (SCRIPTS + "[catalog-pins-lost_answers]",),
        "A pin that was granted does not keep its version from being cut."),
    Mistake(
        "catalog-watermark-without-condition", "compactlib/kv/cell.py",
        "transact({**unchanged(self.cells, found), **wanted.conditions}, ",
        "transact({}, ",
        (SCRIPTS + "[catalog-watermark-paused_owners]",),
        "The low watermark falls back: a reader begins below it and finds data gone."),
    Mistake(
        "catalog-any-term-cuts", "compactlib/catalog/update_log.py",
        "            if term < state.term:\n",
        "            if False:\n",
        ("tests/promises/catalog/test_catalog_scenarios.py::test_scenario[round_two_coordinators]",),
        "A coordinator that was replaced cuts history that its successor wants to keep."),
    Mistake(
        "catalog-pins-forgotten-unseen", "compactlib/catalog/pins.py",
        "            return before and {each: pin for each, pin in self._living(before).items() if each != released}\n",
        "            expired = self.__dict__.setdefault('_expired', (before or {}).keys() - self._living(before).keys())\n"
        "            return before and {each: pin for each, pin in before.items() if each not in {*expired, released}}\n",
        (SCRIPTS + "[catalog-retaken-paused_owners]",),
        "A pin that was renewed while expired ones are dropped is dropped too."),
    Mistake(
        "catalog-cut-without-members", "compactlib/catalog/round.py",
        "conditions=unchanged)",
        "conditions={})",
        ("tests/promises/catalog/test_catalog_scenarios.py::test_scenario[round_node_joins_before_publish]",),
        "History is cut below what a node needs that has joined since the others were asked."),
    Mistake(
        "catalog-copy-unheard", "compactlib/catalog/published.py",
        "                    self._service.pins.pin(f\"a copy on {self._node}\", version, history, ttl_seconds=0)\n",
        "                    pass\n",
        ("tests/promises/catalog/test_catalog_decision.py::test_a_running_round_learns_of_a_copied_replica",),
        "A replica that was copied must replay versions that a round under way has cut."),
    Mistake(
        "catalog-published-before-flush", "compactlib/catalog/published.py",
        "                known.applied = index, max(known.applied[1], time)\n",
        "                known.published = max(known.published, time)\n",
        ("tests/promises/catalog/test_catalog_worlds.py::test_nothing_is_cut_that_somebody_needs",),
        "A replica must replay versions that were cut, since a time counted before it was on disk."),
    Mistake(
        "catalog-watermark-in-force-unkept", "compactlib/catalog/watermark.py",
        "                self._limit = max(self._limit, wanted)\n",
        "                self._limit = self._stored = max(self._limit, wanted)\n",
        ("tests/promises/catalog/test_catalog_needs.py::test_watermark_is_in_force_only_after_its_write",),
        "Data goes below a low watermark that a restart forgets: readers begin below it."),
    Mistake(
        "catalog-decision-not-asked-again", "compactlib/catalog/service.py",
        "        limits = limits_of(attrs.evolve(plan.view, history=history, now=now), target)\n",
        "        limits = ()\n",
        ("tests/promises/catalog/test_catalog_decision.py::test_partition_moved_since_the_decision_keeps_its_table",),
        "History is cut though a partition has moved to a node that was not asked."),
    Mistake(
        "catalog-pieces-not-read-back", "compactlib/catalog/update_log.py",
        "        if self._joined(version, pieces) != whole:\n",
        "        if False:\n",
        ("tests/promises/test_promise_snapshot_outputs.py::test_catalog_compaction_fails_by_name_when_its_snapshot_is_damaged",),
        "Updates are deleted though the snapshot in their place cannot be read."),
    Mistake(
        "catalog-pin-of-what-was-cut", "compactlib/catalog/pins.py",
        "            if version < state.earliest:\n",
        "            if False:\n",
        ("tests/promises/catalog/test_catalog_decision.py::test_copy_of_a_cut_version_is_refused",),
        "A pin is granted on a version that is gone."),
    Mistake(
        "catalog-term-not-raised-by-election", "compactlib/catalog/lease.py",
        "        if held.term > term:\n",
        "        if False:\n",
        ("tests/promises/catalog/test_catalog_node.py::test_election_raises_the_term_of_the_log",),
        "A former coordinator cuts history after its successor was elected."),
    Mistake(
        "catalog-join-without-wait", "compactlib/catalog/node.py",
        "        clock.clock.sleep(clock.max_skew_ms / 1000)\n",
        "",
        ("tests/promises/catalog/test_catalog_node.py::test_node_joins_after_the_greatest_skew_of_the_clocks",),
        "A transaction of a node that has just joined begins below a time that was handed out before."),
    Mistake(
        "catalog-joined-without-its-versions", "compactlib/catalog/node.py",
        "                self.service.history.at(needed.time)\n",
        "                pass\n",
        ("tests/promises/catalog/test_catalog_node.py::test_node_that_needs_a_version_cut_in_its_absence_cannot_join",),
        "A node joins with a replica that must replay versions that are gone."),
    Mistake(
        "catalog-hole-in-the-log-unseen", "compactlib/catalog/check.py",
        "        if version > expected:\n            raise _missing(expected)\n",
        "",
        ("tests/promises/catalog/test_catalog_golden.py::test_hole_in_the_log_is_named",),
        "A version that is lost passes for one that never was."),
    Mistake(
        "cut-of-a-killed-owner-not-synced", "compactlib/raftlog/segment/segments.py",
        "sorted({*(ref.number for ref in self._view.refs[-1:]), self.newest_number})",
        "[self.newest_number]",
        ("tests/promises/raftlog/test_raftlog_truncation.py::"
         "test_truncation_of_a_killed_owner_survives_a_power_failure",),
        "Truncated entries are there again behind acknowledged ones, and the log cannot be opened."),
    Mistake(
        "removed-empty-segment-comes-back", "compactlib/raftlog/log/owned_log.py",
        "        if removed:\n            # Durable",
        "        if not removed:\n            # Durable",
        ("tests/promises/raftlog/test_raftlog_truncation.py::"
         "test_truncation_of_a_killed_owner_survives_a_power_failure",),
        "An unsealed segment lies below acknowledged entries after a power failure, and the log cannot be opened."),
    Mistake(
        "entries-behind-the-seal-not-written-again", "compactlib/raftlog/segment/writer.py",
        "            for place in range(seal.data_end, loaded.data_end, _FLUSH_BYTES):\n",
        "            for place in range(0):\n",
        ("tests/promises/raftlog/test_raftlog_refused_syncs.py::"
         "test_entries_of_a_flush_survive_a_power_failure_after_refused_syncs",),
        "Acknowledged entries, of which a refused sync has kept no byte, are gone after a power failure."),
    Mistake(
        "newest-seal-not-written-again", "compactlib/raftlog/segment/writer.py",
        "        if len(self.index) or seal.sealed:\n",
        "        if seal.sealed:\n",
        ("tests/promises/raftlog/test_raftlog_refused_syncs.py::"
         "test_torn_seal_leaves_another_seal_after_refused_syncs",),
        "A power failure tears the next seal, the segment has no whole seal, and the log cannot be opened."),
    Mistake(
        "last-seal-not-written-again", "compactlib/raftlog/segment/writer.py",
        "        if len(self.index) or seal.sealed:\n",
        "        if not seal.sealed:\n",
        ("tests/promises/raftlog/test_raftlog_refused_syncs.py::"
         "test_entries_that_opening_has_shown_survive_a_power_failure_after_refused_syncs",),
        "An unsealed segment lies below one with entries after a power failure, and the log cannot be opened."),
    Mistake(
        "torn-segment-takes-more-entries", "compactlib/raftlog/segment/writer.py",
        "(loaded.is_torn or not is_last)",
        "not is_last",
        ("tests/promises/raftlog/test_raftlog_refused_syncs.py::"
         "test_torn_entries_stay_gone_after_a_power_failure_and_refused_syncs",),
        "A torn record counts behind a new entry of the same length."),
    Mistake(
        "received-state-not-written-again", "compactlib/raftlog/snapshots.py",
        "        for place in range(0, self.state_bytes, _PIECE_BYTES):\n",
        "        for place in range(0):\n",
        ("tests/promises/raftlog/test_raftlog_refused_syncs.py::"
         "test_received_state_survives_a_power_failure_after_refused_syncs",),
        "The state of a received snapshot is gone after a power failure."),
    Mistake(
        "segment-not-synced", "compactlib/raftlog/segment/writer.py",
        "            self._out.sync()\n"
        "            # Not synced",
        "            # Not synced",
        ("segment_log-crashes",),
        "Entries that `sync` has acknowledged are gone after a power failure."),
    Mistake(
        "refused-flush-leaves-its-records", "compactlib/raftlog/segment/writer.py",
        "        self._out.truncate(native.INDEX_START)\n",
        "        self._out.truncate(synced.data_end)\n",
        ("tests/promises/raftlog/test_raftlog_store_failures.py::"
         "test_entries_of_a_flush_whose_sync_is_refused_are_in_no_segment",),
        "Entries without payload that no sync has covered count as flushed, and a power failure takes them."),
    Mistake(
        "segment-sealed-after-its-successor", "compactlib/raftlog/segment/segments.py",
        "            writer.seal()\n"
        "            writer.close()\n",
        "            writer.close()\n",
        ("segment_log-crashes",),
        "A segment that is not the newest is torn in a power failure, and the log cannot be opened."),
    Mistake(
        "truncation-removal-not-synced", "compactlib/raftlog/segment/segments.py",
        "                self._disk.unlink(self._path_of(number))\n"
        "                self._disk.sync_folder(self.folder)\n",
        "                self._disk.unlink(self._path_of(number))\n",
        (TRUNCATED + "[little-several_segments]",),
        "Of a truncated log an older segment is gone and a newer one is there, so that it has a hole."),
    Mistake(
        "truncation-removes-oldest-first", "compactlib/raftlog/segment/segments.py",
        "        for number in reversed(removed):\n",
        "        for number in removed:\n",
        (TRUNCATED + "[little-several_segments]",),
        "Of a truncated log an older segment is gone and a newer one is there, so that it has a hole."),
    Mistake(
        "truncation-removes-the-first-segment", "compactlib/raftlog/segment/segments.py",
        "        if number != 1 or self.row is not None:\n",
        "        if number:\n",
        (HOLES + "test_log_that_was_truncated_to_nothing_keeps_an_empty_first_segment",),
        "A log that was truncated to nothing looks like one that has lost its first segment."),
    Mistake(
        "lost-first-segment-unseen", "compactlib/raftlog/segment/listing.py",
        "    if row is None and numbers and numbers[0] != 1:\n",
        "    if row is None and numbers and not numbers[0]:\n",
        (HOLES + "test_lost_first_segment_without_a_snapshot_is_named_at_opening",),
        "Acknowledged entries are gone, and the log begins behind them."),
    Mistake(
        "lost-newest-segment-unseen", "compactlib/raftlog/segment/listing.py",
        "    if seal is not None and seal.sealed and not seal.is_alone:\n",
        "    if seal is not None and not numbers:\n",
        (HOLES + "test_lost_newest_segment_is_named_at_opening",),
        "Acknowledged entries are gone, and new ones get their indexes."),
    Mistake(
        "opening-of-a-log-not-waited-for", "compactlib/raftlog/store.py",
        "        with self._guard.use(), self._changing:\n            self._guard.require_open()\n",
        "        with self._changing:\n            self._guard.require_open()\n",
        ("tests/promises/raftlog/test_raftlog_former_owner.py::"
         "test_no_call_changes_a_log_after_a_close[little-log-store]",),
        "A store makes a log, or recovers one, in the folder of the next owner."),
    Mistake(
        "log-of-a-store-opened-as-a-store", "compactlib/raftlog/store.py",
        "        require_no_store(self._folder)\n",
        "",
        ("tests/promises/raftlog/test_raftlog_handles.py::test_folder_of_a_log_of_a_store_is_refused_by_name",),
        "Two owners write in the folder of a log."),
    Mistake(
        "resting-segment-taken-back-on-the-disk", "compactlib/raftlog/segment/writer.py",
        "        if self._file is None:\n            self.index,",
        "        if False:\n            self.index,",
        ("tests/promises/raftlog/test_raftlog_handles.py::test_flush_without_handles_is_repeated",),
        "A flush that finds no file handle closes the log."),
    Mistake(
        "truncation-seal-not-synced", "compactlib/raftlog/segment/writer.py",
        "        out.write_at(seal.place, [native.encode_seal(seal)])\n"
        "        out.sync()\n"
        "    finally:\n",
        "        out.write_at(seal.place, [native.encode_seal(seal)])\n"
        "    finally:\n",
        (TRUNCATED + "[little-within_a_segment]",),
        "Entries that were taken back are there again, and the new ones lie behind them."),
    Mistake(
        "truncation-not-made-again", "compactlib/raftlog/raft_log.py",
        "            self._own.truncate(self._overruled_above)\n",
        "            pass\n",
        (TRUNCATED_STORE + "[little-several_segments]",),
        "A cut that the WAL holds is never carried out in segments, and a flush writes behind what was cut."),
    Mistake(
        "truncation-before-the-wal", "compactlib/raftlog/raft_log.py",
        "                self._wal.sync(self._memory.ticket)\n"
        "                self._own.truncate(after)\n",
        "                self._own.truncate(after)\n"
        "                self._wal.sync(self._memory.ticket)\n",
        (TRUNCATED_STORE + "[little-within_a_segment]",),
        "Segments are cut, and a power failure takes the cut and the leader's entries out of the WAL."),
    Mistake(
        "raftlog-rewrite-not-synced", "compactlib/raftlog/compaction/rewrite.py",
        "                out.sync()\n",
        "",
        ("segment_log-crashes",),
        "The merged segment is empty after a power failure, and its sources are gone."),
    Mistake(
        "raftlog-copies-not-checked", "compactlib/raftlog/compaction/commit.py",
        "            copier.check(reader)\n",
        "            pass\n",
        ("tests/promises/test_promise_raftlog_outputs.py",),
        "A damaged copy takes the place of the only good one."),
    Mistake(
        "memtable-flushed-unsynced", "compactlib/raftlog/raft_log.py",
        "        self._undone_if_refused(self._own.sync)\n",
        "",
        ("raft_log_store-crashes",),
        "Entries are in no file once the WAL that held them is removed."),
    Mistake(
        "wal-tail-not-repeated", "compactlib/raftlog/wal/wal.py",
        "[*held, *self._tail]",
        "held",
        ("raft_log_store-kills_and_power",),
        "Entries that a successor has shown to its peers are lost in a power failure."),
    Mistake(
        "wal-repeated-frames-count-twice", "compactlib/raftlog/wal/frames.py",
        "                    frames.pop(ids[log], None)\n",
        "                    pass\n",
        ("tests/promises/raftlog/test_raftlog_store_failures.py::"
         "test_damaged_log_takes_the_same_room_in_the_wal_however_often_the_store_is_opened",),
        "A damaged log takes twice the room in the WAL after each opening."),
    Mistake(
        "wal-without-a-durable-name-closes-the-store", "compactlib/raftlog/wal/wal.py",
        "            if self._out is not None and may_be_there(path):\n",
        "            if may_be_there(path):\n",
        ("tests/promises/raftlog/test_raftlog_store_failures.py::"
         "test_wal_file_whose_name_a_full_disk_has_not_synced_is_begun_again",),
        "A store that was opened on a full disk is closed."),
    Mistake(
        "wal-not-synced", "compactlib/raftlog/wal/wal.py",
        "        try:\n"
        "            out.sync()\n"
        "        except StorageError as error:\n"
        "            self.guard.fail(error)\n"
        "            raise\n",
        "",
        ("raft_log_store-crashes",),
        "Acknowledged entries are gone after a power failure."),
    Mistake(
        "wal-queue-emptied-before-its-batch", "compactlib/raftlog/wal/wal.py",
        "                self.guard.undone()\n                raise\n        with self._queueing:\n",
        "                self.guard.undone()\n"
        "                del self._queue[:len(taken)]\n"
        "                self.durable_ticket += len(taken)\n"
        "                raise\n        with self._queueing:\n",
        ("tests/promises/raftlog/test_raftlog_store_failures.py::test_close_during_a_batch_that_is_refused_syncs_again",),
        "Entries of a batch that a full disk refused are acknowledged by the next sync, which does not write them."),
    Mistake(
        "wal-file-grows-for-ever", "compactlib/raftlog/raft_log.py",
        "        if wal.is_overfull:\n",
        "        if False:\n",
        ("tests/promises/raftlog/test_raftlog_store_failures.py::"
         "test_memory_is_bounded_on_a_disk_that_takes_no_new_wal_file",),
        "Where the disk takes no new file, all entries stay in memory until the process is killed."),
    Mistake(
        "snapshot-above-the-end-of-its-log", "compactlib/raftlog/raft_log.py",
        "            # An entry may have been truncated since the check.\n"
        "            self._memory.skip_to(row.index)\n",
        "",
        ("tests/promises/raftlog/test_raftlog_truncation.py::"
         "test_entries_below_a_snapshot_are_refused_if_the_log_was_truncated_during_it",),
        "Acknowledged entries are dead from the beginning."),
    Mistake(
        "raftlog-removal-not-synced", "compactlib/raftlog/store.py",
        "            self._files.sync_folder(self._logs_folder)\n"
        "            for name in removed:\n",
        "            for name in removed:\n",
        ("raft_log_store-crashes",),
        "A removed log is back, with half of its files."),
    Mistake(
        "raftlog-snapshot-before-its-entries", "compactlib/raftlog/raft_log.py",
        "        self._wal.sync(self._memory.ticket)\n"
        "        self._require_held(found)\n",
        "        self._require_held(found)\n",
        ("raft_log_store-crashes",),
        "A snapshot names live entries that a power failure takes, and the log cannot be opened."),
    Mistake(
        "received-entries-not-synced", "compactlib/raftlog/snapshots.py",
        "        self._entries.sync()\n",
        "",
        (RECEIVED + "test_crash_of_a_transfer_leaves_the_old_log_or_the_snapshot",),
        "A received snapshot is in force whose live entries a power failure has taken."),
    Mistake(
        "received-state-not-synced", "compactlib/raftlog/snapshots.py",
        "        self._state.sync()\n",
        "",
        (RECEIVED + "test_crash_of_a_transfer_leaves_the_old_log_or_the_snapshot",),
        "A received snapshot is in force whose state a power failure has taken."),
    Mistake(
        "received-term-not-recorded", "compactlib/raftlog/transfer.py",
        "            self.log.record_hard_state(self.offer.term)\n",
        "            pass\n",
        (RECEIVED + "test_term_of_the_leader_is_durable_before_the_snapshot_is_taken",),
        "A follower takes a snapshot in a term that it forgets, and may vote in it twice."),
    Mistake(
        "received-links-not-checked", "compactlib/raftlog/transfer.py",
        "if before != previous or not indexes",
        "if not indexes",
        (RECEIVED + "test_entries_that_do_not_follow_are_refused_as_damage",),
        "A gap in what a leader sends is not noticed."),
    Mistake(
        "install-refused-log-stays-open", "compactlib/raftlog/raft_log.py",
        "                    if not (isinstance(error, StorageError) and incoming.is_open):\n"
        "                        self._guard.fail(error)\n",
        "",
        (RECEIVED + "test_disk_that_refuses_leaves_the_old_log_or_a_closed_one",),
        "A follower appends over entries that the snapshot in force needs."),
    Mistake(
        "sent-entries-not-pinned", "compactlib/raftlog/transfer.py",
        "            pin = held.enter_context(log.pin(row.live))\n",
        "            pin = held.enter_context(log.pin(row.live))\n"
        "            pin.release()\n"
        "            pin.read = log.read\n",
        (RECEIVED + "test_leader_sends_a_snapshot_while_a_newer_one_is_taken",),
        "A transfer ends whenever the leader takes a newer snapshot."),
    Mistake(
        "pinned-entries-not-flushed", "compactlib/raftlog/raft_log.py",
        "        needed = row.needed(held) | (held & self._own.pinned)\n",
        "        needed = row.needed(held)\n",
        ("tests/promises/raftlog/test_raftlog_pins_and_forecasts.py",),
        "Entries that a transfer needs are gone once the memory that held them is flushed."),
    Mistake(
        "raftlog-cut-not-queued", "compactlib/raftlog/raft_log.py",
        "            self._cut(cut_frame(after))\n",
        "",
        ("raft_log_store-kills",),
        "Entries of a deposed leader that were taken back are there."),
    Mistake(
        "snapshot-state-not-synced", "compactlib/raftlog/snapshots.py",
        "                out.sync()\n",
        "",
        ("raft_log_store-crashes",),
        "The snapshot in force is torn, and the entries below it are gone."),
    Mistake(
        "snapshot-state-not-read-back", "compactlib/raftlog/snapshots.py",
        "            self._check(of)\n"
        "            self._files",
        "            self._files",
        ("tests/promises/test_promise_lost_snapshot_folder.py",),
        "A state that the disk has garbled takes the place of a whole one."),
    Mistake(
        "snapshot-name-not-synced", "compactlib/raftlog/snapshots.py",
        "            self._check(of)\n"
        "            self._files.sync_folder(self.folder)\n",
        "            self._check(of)\n",
        ("raft_log_store-crashes",),
        "The snapshot in force has no state after a power failure, and the log cannot be opened."),
    Mistake(
        "snapshot-state-not-found-missing", "compactlib/raftlog/snapshots.py",
        "            self.open_state(row).close()\n",
        "            pass\n",
        ("tests/promises/test_promise_lost_snapshot_folder.py",),
        "A log whose snapshot was lost is opened, and the machine is begun anew behind what it covers."),
    Mistake(
        "snapshot-of-unknown-outcome-goes-on", "compactlib/raftlog/log/owned_log.py",
        "                if snapshot_version(self._folder) == before:\n",
        "                if True:\n",
        ("tests/promises/test_promise_lost_snapshot_folder.py",),
        "Entries are acknowledged that a snapshot covers which was refused and is in force after a crash."),
    Mistake(
        "received-entries-not-taken-again", "compactlib/raftlog/raft_log.py",
        "                self._take_received(row)\n"
        "            after = max(",
        "                pass\n"
        "            after = max(",
        (RECEIVED + "test_crash_of_a_transfer_leaves_the_old_log_or_the_snapshot",),
        "A received snapshot is in force whose live entries the log never takes."),
    Mistake(
        "received-entries-taken-twice", "compactlib/raftlog/snapshots.py",
        "            self._files.unlink(path)\n"
        "        self._files.sync_folder(self.folder)\n"
        "\n"
        "\n"
        "def is_half",
        "            self._files.unlink(path)\n"
        "\n"
        "\n"
        "def is_half",
        ("tests/promises/raftlog/test_raftlog_raft_log_machine.py::"
         "test_a_crash_at_every_step_loses_nothing_confirmed[little-install]",),
        "The entries of a received snapshot come back after a power failure, and cut what was appended since."),
    Mistake(
        "received-entries-end-not-checked", "compactlib/raftlog/snapshots.py",
        "decoded is None or decoded[2] not in (0, end)",
        "decoded is None",
        (RECEIVED + "test_damaged_entries_of_a_received_snapshot_keep_no_other_log_back",),
        "Live entries are lost with the end of their file, and the snapshot is in force without them."),
    Mistake(
        "received-names-not-synced", "compactlib/raftlog/snapshots.py",
        "        self._files.sync_folder(os.path.dirname(self._entries_path))\n",
        "",
        (RECEIVED + "test_crash_of_a_transfer_leaves_the_old_log_or_the_snapshot",),
        "A received snapshot is in force, and its state and its live entries have no name after a power failure."),
    Mistake(
        "blob-record-not-synced", "compactlib/blobstore/log.py",
        "            # No reader sees a record whose write was reported as failed.\n"
        "            self._sync()\n",
        "            pass\n",
        ("blob_store-crashes",),
        "Blobs that were acknowledged are gone after a power failure."),
    Mistake(
        "blob-list-not-synced", "compactlib/blobstore/segment_list.py",
        "        self._out.sync()\n",
        "",
        ("blob_store-crashes",),
        "A power failure in the middle of a compaction loses what it has moved."),
    Mistake(
        "blob-outputs-not-synced", "compactlib/blobstore/compact.py",
        "        log.files.sync_folder(log.folder)\n",
        "",
        (LOSSES + "[blob_store-compaction]",),
        "New segments lose their names in a power failure, after their sources are gone."),
    Mistake(
        "blob-copies-not-synced", "compactlib/blobstore/survivors.py",
        "            out.sync()\n",
        "",
        ("blob_store-crashes",),
        "New segments are empty after a power failure, and their sources are gone."),
    Mistake(
        "blob-new-segment-not-synced", "compactlib/blobstore/segment.py",
        "        files.sync_folder(folder)\n",
        "",
        ("blob_store-crashes",),
        "All blobs in a new segment are gone after a power failure."),
    Mistake(
        "blob-found-records-not-synced", "compactlib/blobstore/opening.py",
        "            out.truncate(active.segment.end)\n"
        "        out.sync()  # reads return the remaining records\n",
        "            out.truncate(active.segment.end)\n",
        (KILLED + "[little-blob_store-writes]",),
        "Blobs that a restarted store has shown are gone after a power failure."),
    Mistake(
        "blob-revived-dropped", "compactlib/blobstore/compact.py",
        "            if survivors.are_hit_by(records_after(now, sequence), now):\n"
        "                return False\n"
        "            log.switch",
        "            log.switch",
        ("tests/promises/blobstore/test_blobstore_revived.py",),
        "A blob that a peer revives while a compaction drops it has no content."),
    Mistake(
        "blob-erasure-not-marked", "compactlib/blobstore/hard_delete.py",
        "            replace_parts(log.files, log.folder, segment.parts, log.descriptor.incarnation)\n",
        "            pass\n",
        ("tests/promises/blobstore/test_blobstore_erasure_on_a_full_disk.py",),
        "An interrupted hard delete leaves an index that says that the content is there; undeleting gives "
        "zeros."),
    Mistake(
        "blob-erasure-not-synced", "compactlib/blobstore/erasure.py",
        "            written += sum(out.write_at(each.offset, each.pieces()) for each in group)\n"
        "            out.sync()\n",
        "            written += sum(out.write_at(each.offset, each.pieces()) for each in group)\n",
        ("blob_store-crashes",),
        "Content that was reported as erased is on the disk after a power failure."),
    Mistake(
        "blob-sources-without-their-end", "compactlib/blobstore/opening.py",
        "            damage[each.name] = error\n",
        "            pass\n",
        ("tests/promises/test_promise_blob_outputs.py",),
        "Opening removes the sources of a compaction although a new segment is damaged."),
    Mistake(
        "blob-outputs-not-checked", "compactlib/blobstore/compact.py",
        "                check_segment(outcome.files[0].path, output.header, output.end, output.records, output.sequences,\n"
        "                              done.budget)\n",
        "                pass\n",
        ("tests/promises/test_promise_blob_outputs.py",),
        "A compaction commits a new segment that is damaged, and removes its sources."),
    Mistake(
        "blob-lost-segment-forgotten", "compactlib/blobstore/segment_list.py",
        "    missing = sorted(listed.difference(present))\n",
        "    missing = []\n",
        ("tests/promises/test_promise_lost_blob_segment.py",),
        "A segment that is lost is never missed."),
    Mistake(
        "blob-token-of-another-history", "compactlib/blobstore/replication.py",
        "or check_of(entry) == token.check\n",
        "or True\n",
        ("tests/promises/test_promise_restored_blob_store.py",),
        "A peer of a store that was put back misses what was written to it since."),
    Mistake(
        "blob-life-not-counted", "compactlib/blobstore/operations.py",
        "life_version=newest.life_version + state.is_deleted)",
        "life_version=newest.life_version)",
        ("tests/promises/test_promise_blob_replicas.py",),
        "A blob that was put in place of a deleted one stays deleted at every peer."),
    Mistake(
        "blob-without-a-put-refused", "compactlib/blobstore/operations.py",
        "    is_there = state.is_deleted or state.put is not None\n",
        "    is_there = True\n",
        ("tests/promises/test_promise_blob_replicas.py",),
        "An id that answers that it is missing can never be put."),
    Mistake(
        "blob-peers-delete-returns", "compactlib/blobstore/operations.py",
        "        is_known = life <= life_here\n",
        "        is_known = False\n",
        ("tests/promises/test_promise_blob_replicas.py",),
        "A peer that tells its records again brings a deleted blob back."),
    Mistake(
        "staging-collected-commit-kept", "compactlib/staging/branch.py",
        "            self._context.committed.claim(metarange_id)\n        except (BeingCollected,",
        "            pass\n        except (BeingCollected,",
        (SCRIPTS + "[repository-collected-paused_owners]",),
        "A commit that stood still names files that a collection has taken: the branch cannot be read."),
    Mistake(
        "staging-seal-loses-the-token", "compactlib/staging/branches.py",
        "else record.sealed_with(self.new_token())\n",
        "else attrs.evolve(record, staging_token=self.new_token())\n",
        ("repository_memory-kills",),
        "A commit loses all that was staged before it."),
    Mistake(
        "staging-collection-unfenced", "compactlib/staging/ranges/collect.py",
        "again, files = self._sense(fenced=True)",
        "again, files = self._sense()",
        (SCRIPTS + "[repository-collected-paused_owners]",),
        "A commit names files that a collection takes at that moment."),
    Mistake(
        "staging-dropped-tokens-unmarked", "compactlib/staging/branches.py",
        "self._mark(branch, dropped) if dropped else {}",
        "self._mark(branch, dropped) if False else {}",
        ("tests/promises/staging/test_staging_leftovers.py",),
        "Entries of tokens that a commit has replaced stay for ever."),
    Mistake(
        "staging-reset-of-a-prefix-forgets-the-rest", "compactlib/staging/branch.py",
        "committed.diff(content, head, prefix, upper_bound(prefix))",
        "committed.diff(content, head, prefix)",
        ("tests/promises/staging/test_vectors_compaction.py::"
         "test_reset_of_a_prefix_keeps_the_staged_records_of_other_keys",),
        "A reset of a prefix drops the staged records of other keys."),
    Mistake(
        "staging-rewrite-not-read-back", "compactlib/staging/branch.py",
        "        self._context.committed.check(applied.metarange_id, base)\n",
        "",
        ("tests/promises/test_promise_staging_outputs.py",),
        "A commit drops the tokens of records that its damaged file no longer has."),
    Mistake(
        "staging-parquet-seal-unchecked", "compactlib/staging/ranges/parquet.py",
        "        if _seal_of(data, at, range_id) != data[at:at + _DIGITS]:\n",
        "        if False:\n",
        ("tests/promises/staging/test_range_formats_conformance.py",),
        "A range of Parquet with a flipped bit is read as other records."),
    Mistake(
        "staging-doom-mark-of-nothing", "compactlib/staging/ranges/collect.py",
        '"\\n".join(sorted(doomed)).encode("ascii")',
        'b""',
        ("tests/staging/committed/test_committed_collect.py",),
        "A writer takes a file again that a collection deletes at that moment."),
    Mistake(
        "staging-late-write-unmarked", "compactlib/staging/branch.py",
        "                self._branches.mark_late(self._name, before.staging_token)\n",
        "                pass\n",
        (LEFTOVERS + "test_entry_written_late_into_a_cleaned_token_is_removed",),
        "Entries that came late into a token that was cleaned up stay for ever."),
    Mistake(
        "staging-branch-of-collected-commit", "compactlib/staging/repository.py",
        "                context.committed.claim(metarange_id)\n",
        "                pass\n",
        (LEFTOVERS + "test_branch_that_is_made_too_late_of_a_collected_commit_is_refused",),
        "A branch names a commit whose files a collection has taken."),
    Mistake(
        "staging-compaction-of-collected-files", "compactlib/staging/compact.py",
        "                    self.context.committed.claim(result)\n",
        "                    pass\n",
        (LEFTOVERS + "test_compaction_whose_result_was_collected_yields",),
        "A compaction that stood still names files that a collection has taken."),
    Mistake(
        "staging-confirms-nothing", "compactlib/staging/ranges/files.py",
        "if id_ in doomed or not self.is_there(path):",
        "if id_ in doomed:",
        ("tests/staging/committed/test_committed_collect.py::"
         "test_a_collection_at_every_step_of_a_writer_loses_nothing",),
        "A metarange names a range that a collection has deleted in between."),
    Mistake(
        "staging-range-read-ahead-used-again", "compactlib/staging/ranges/apply.py",
        "        self._next_rows = None\n        if following",
        "        if following",
        ("tests/promises/staging/test_staging_large_ranges.py",),
        "The records of a range that was read ahead stand for those of a later range, which are lost."),
    Mistake(
        "staging-built-on-another-head", "compactlib/staging/record.py",
        "        return (self.commit_id == older.commit_id and self.compacted",
        "        return (self.compacted",
        ("tests/promises/staging/test_vectors_branch.py::"
         "test_two_empty_commits_at_once_are_both_in_the_history",),
        "A commit that another one made meanwhile is lost from the history."),
    Mistake(
        "staging-seal-of-an-outdated-plan", "compactlib/staging/compact.py",
        "            if record.layers != view.record.layers:\n                return None\n            # A full record",
        "            # A full record",
        ("tests/promises/staging/test_vectors_compaction.py::test_an_outdated_plan_changes_nothing",),
        "A plan that is refused as outdated has sealed a token."),
    Mistake(
        "staging-put-held-whatever", "compactlib/staging/branch.py",
        "                if now.staging_token == record.staging_token:",
        "                if True:",
        (PAIRS,),
        "A write into a token that a commit has read is acknowledged, and lost."),
    Mistake(
        "staging-nothing-to-do-unchecked", "compactlib/staging/branches.py",
        "            if not wanted.changes:\n                self._require_unchanged(branch, record)\n",
        "",
        ("tests/promises/staging/test_staging_interleavings.py::"
         "test_an_operation_against_a_rewrite_and_the_cleanup_after_it",),
        "A reset finds nothing in a token that was emptied meanwhile, and does nothing."),
    Mistake(
        "staging-crossed-base-takes-one", "compactlib/staging/ranges/committed.py",
        "            yield key, strategy\n",
        "            yield key, theirs\n",
        ("tests/promises/staging/test_staging_criss_cross.py",),
        "Branches that merged each other lose a change, or not, by the accident of commit ids."),
    Mistake(
        "staging-parts-in-any-order", "compactlib/staging/rewrite.py",
        "        return self.above < made.min_key and (self.last is None or made.max_key <= self.last)\n",
        "        return True\n",
        ("tests/promises/staging/test_staging_parts.py",),
        "An executor that gives the parts of a merge in another order leaves ranges in which keys are not found."),
    Mistake(
        "kv-any-version-fits", "compactlib/kv/store.py",
        "(type(predicate) is type(version) and predicate == version)",
        "type(predicate) is type(version)",
        ("tests/promises/kv/test_kv_conformance.py",),
        "A compare-and-set overwrites what another process has written meanwhile."),
    Mistake(
        "staging-lost-write-not-repeated", "compactlib/kv/cell.py",
        "verdict = None if self.judge is None else self.judge(before, sent, found)\n",
        "verdict = None\n",
        ("tests/promises/staging/test_staging_lost_answers.py",),
        "A conditional write of a branch whose request is lost fails, though it could be repeated."),
    Mistake(
        "sqlite-damaged-row-for-good", "compactlib/kv/scan.py",
        "if entry.damage is not None and not self._keys_only:\n",
        "if entry.damage is not None:\n",
        ("tests/promises/kv/test_kv_damaged_row.py",),
        "A damaged row that no one needs ends every cleanup."),
    Mistake(
        "kv-damage-behind-the-prefix", "compactlib/kv/scan.py",
        "        if not entry.key.startswith(self._prefix):\n",
        "        if entry.damage is not None and not self._keys_only:\n"
        "            raise entry.damage\n"
        "        if not entry.key.startswith(self._prefix):\n",
        ("tests/promises/test_promise_damaged_leftovers.py",),
        "A damaged row ends the scans of other prefixes."),
    Mistake(
        "sqlite-killed-process-unsynced", "compactlib/kv/sqlite.py",
        "                _sync_wal(connection)\n",
        "",
        ("tests/promises/kv/test_kv_killed_process.py",),
        "A power failure takes a commit of a killed process that its successor has read."),
    Mistake(
        "kv-damaged-value-returned", "compactlib/kv/store.py",
        "            raise found.damage\n",
        "            pass\n",
        ("tests/promises/test_promise_damaged_leftovers.py",),
        "A damaged value is returned as an empty value."),
    Mistake(
        "kv-damaged-values-returned", "compactlib/kv/store.py",
        "                raise entry.damage\n",
        "                pass\n",
        ("tests/promises/kv/test_kv_damaged_row.py",),
        "Damaged values are returned as empty values."),
    Mistake(
        "sqlite-foreign-file-filled", "compactlib/kv/sqlite.py",
        "                if not _is_ready(connection, self._path, create=True):\n",
        "                if True:\n",
        ("tests/promises/kv/test_kv_another_creator.py",),
        "A store writes its table and its ids into the file of another program."),
    Mistake(
        "kv-damage-before-its-page", "compactlib/kv/sqlite.py",
        "        return KVEntry(key, b\"\", version, damage)\n",
        "        raise damage\n",
        ("tests/promises/test_promise_damaged_leftovers.py",),
        "A damaged row hides the sound rows before it."),
    Mistake(
        "fence-damaged-record-for-good", "compactlib/fences/fence.py",
        "                    wrong.append(error)\n",
        "                    raise error\n",
        ("tests/promises/test_promise_damaged_leftovers.py",),
        "A damaged record of a fence keeps all later ones for ever."),
    Mistake(
        "staging-damaged-mark-for-good", "compactlib/staging/reclaim.py",
        "marks = context.branches.marks(damage)\n",
        "marks = context.branches.marks()\n",
        ("tests/promises/test_promise_damaged_leftovers.py",),
        "A damaged drop mark ends every reclaim of a repository, ranges included."),
    Mistake(
        "staging-damaged-mark-hidden", "compactlib/staging/reclaim.py",
        "    if damage and not report.is_empty:\n",
        "    damage.clear()\n    if damage and not report.is_empty:\n",
        ("tests/promises/test_promise_damaged_leftovers.py",),
        "A reclaim does not name a damaged drop mark."),
    Mistake(
        "staging-missing-part-hides-the-report", "compactlib/staging/reclaim.py",
        "    except (CorruptData, Unsupported, NotFound) as error:\n",
        "    except (CorruptData, Unsupported) as error:\n",
        ("tests/promises/test_promise_damaged_leftovers.py",),
        "A reclaim that finds a live metarange missing does not say which tokens it removed."),
    Mistake(
        "staging-damaged-mark-ends-a-count", "compactlib/staging/repository.py",
        "in self._context.branches.marks({}))",
        "in self._context.branches.marks())",
        ("tests/promises/test_promise_damaged_leftovers.py",),
        "A damaged drop mark ends every count of dropped tokens."),
    Mistake(
        "catalog-damaged-snapshot-deleted", "compactlib/catalog/check.py",
        "    if keys.update_key(earliest) in damage:\n",
        "    if False:\n",
        ("tests/promises/test_promise_damaged_leftovers.py",),
        "A reclaim takes the damaged snapshot in force for a missing one."),
    Mistake(
        "kv-created-key-made-twice", "compactlib/kv/cell.py",
        "            elif sent.changes.keys().isdisjoint(found):\n",
        "            elif not found:\n",
        ("tests/promises/kv/test_kv_swap.py",),
        "A key that was created without an answer, and deleted since, is created again."),
    Mistake(
        "object-not-synced", "compactlib/objects/local.py",
        "                out.write_at(0, [data])\n"
        "                out.sync()\n",
        "                out.write_at(0, [data])\n",
        ("local_objects-crashes",),
        "An object is empty after a power failure."),
    Mistake(
        "object-name-not-synced", "compactlib/objects/local.py",
        "                self._files.unlink(private)\n"
        "        self._sync(os.path.dirname(path))\n",
        "                self._files.unlink(private)\n",
        ("local_objects-crashes",),
        "An object is gone after a power failure."),
    Mistake(
        "object-found-not-synced", "compactlib/objects/local.py",
        "        self._settle(os.path.dirname(path))\n"
        "        self._sync(os.path.dirname(path))\n"
        "        return ObjectExists(key=key)\n",
        "        return ObjectExists(key=key)\n",
        (KILLED + "[little-local_objects-offers]",),
        "Who was told that an object exists relies on it, and a power failure takes it."),
    Mistake(
        "object-folder-not-synced", "compactlib/objects/local.py",
        "            self._files.sync_folder(above)\n"
        "        self._sync(folder)\n",
        "        self._sync(folder)\n",
        ("local_objects-crashes",),
        "All objects below a new folder are gone after a power failure."),
    Mistake(
        "objects-settled-unsynced", "compactlib/objects/local.py",
        "            with contextlib.suppress(ReadOnly):\n"
        "                self._settle(folder)\n",
        "            pass\n",
        (KILLED + "[little-local_objects-offers]",),
        "An object that was read is gone after a power failure."),
    Mistake(
        "objects-settled-by-a-delete", "compactlib/objects/local.py",
        "            if os.path.isdir(folder):\n"
        "                self._sync(folder)\n",
        "            if os.path.isdir(folder):\n"
        "                self._sync(folder)\n"
        "                self._settled.put(folder, True)\n",
        ("tests/promises/objects/test_objects_killed.py",),
        "An object in a folder of a killed process, in which others were deleted first, is gone after a power failure."),
    Mistake(
        "local-log-not-synced", "compactlib/raftlog/local_log.py",
        "self._log.append(pending)\n"
        "            self._log.sync()\n",
        "self._log.append(pending)\n",
        ("local_log-crashes",),
        "Commands whose answers were given are gone after a power failure."),
    Mistake(
        "local-log-last-term-dropped", "compactlib/raftlog/local_log.py",
        "live=[index])",
        "live=[])",
        ("tests/promises/scheduler/test_scheduler_openings.py",),
        "A compacted log without later commands begins a term that it had before."),
    Mistake(
        "snapshots-of-former-owners", "compactlib/kv/snapshots.py",
        "        def raised(before: SnapshotHead | None) -> SnapshotHead:\n"
        "            self._require_higher(before, head)\n",
        "        def raised(before: SnapshotHead | None) -> SnapshotHead:\n",
        ("scheduler_in_store-paused_owners",),
        "A late snapshot takes the place of a newer one, whose commands are gone."),
    Mistake(
        "kv-log-append-of-a-former-owner", "compactlib/commandlog/kv_log.py",
        "self._store.transact({**self._owned, (self._partition, key): None}, ",
        "self._store.transact({(self._partition, key): None}, ",
        (SCRIPTS + "[scheduler-takeover-paused_owners]",),
        "A former owner adds a command to a log that its successor has read."),
    Mistake(
        "kv-log-unanswered-command-forgotten", "compactlib/commandlog/kv_log.py",
        "            except (OutcomeUnknown, TakenOver):\n"
        "                raise\n",
        "",
        ("tests/promises/scheduler/test_scheduler_openings.py::"
         "test_command_without_an_answer_is_carried_out_before_the_next",),
        "A command that was written without an answer is carried out after a restart, and not before."),
    Mistake(
        "scheduler-deleted-block-added", "compactlib/scheduler/machine.py",
        "or state.tombstones.covers(block)",
        "or False",
        ("scheduler_in_store-kills", "scheduler_in_folder-kills"),
        "A block whose file is to be deleted is in the index again."),
    Mistake(
        "scheduler-forgets-too-much", "compactlib/scheduler/scheduler.py",
        "lambda: self._log.compact(index)",
        "lambda: self._log.compact(self._log.last_index)",
        ("scheduler_in_folder-threads",),
        "The log forgets commands that the snapshot does not hold."),
    Mistake(
        "fence-floor-after-records", "compactlib/fences/fence.py",
        "            floor = self._raise_floor(token)\n",
        "            floor = token\n",
        ("file_fence-kills",),
        "A worker with an old token is admitted once its record is forgotten."),
    Mistake(
        "fence-admits-lower-tokens", "compactlib/fences/fence.py",
        "    if token < highest:\n",
        "    if False:\n",
        ("file_fence-kills",),
        "A late worker commits over its successor."),
    Mistake(
        "fence-commits-twice", "compactlib/fences/fence.py",
        "        if done.value != value:\n"
        "            raise CommittedOtherwise(resource=resource, token=token)\n"
        "        return record\n",
        "        pass\n",
        ("tests/promises/test_promise_fence_conformance.py",),
        "One token commits two values: readers of the first one have what is not there."),
)
