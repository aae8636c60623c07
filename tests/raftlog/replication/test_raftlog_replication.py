# SPDX-License-Identifier: Apache-2.0
"""The sending and the receiving machine, message by message."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest
from hypothesis import given, strategies as st

from compactlib.errors import CorruptData, DiskFull, InvalidInput, NotFound
from compactlib.files.checksum import crc32
from compactlib.indexset import IndexSet
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog import Entry
from compactlib.raftlog.errors import LiveIndexMissing
from compactlib.raftlog.replication.course import EntrySequence, needed_entries
from compactlib.raftlog.replication.effects import (
    AwaitEntries,
    BeginInstall,
    DiscardInstall,
    Effect,
    Finished,
    InstallSnapshot,
    ReadEntries,
    ReadState,
    Send,
    TermSeen,
    TransferLimits,
    WriteEntries,
    WriteState,
)
from compactlib.raftlog.replication.errors import AbortReason, TransferAborted
from compactlib.raftlog.replication.messages import (
    EntryChunk,
    Envelope,
    FromSender,
    Installed,
    LiveChunk,
    Offer,
    Phase,
    Position,
    Probe,
    Progress,
    Refusal,
    SentEntry,
    StateChunk,
    Unknown,
    Wait,
    Withdrawal,
)
from compactlib.raftlog.replication.receiver import SnapshotReceiver
from compactlib.raftlog.replication.sender import SnapshotSender
from compactlib.raftlog.replication.wire import encode, frame_length
from compactlib.raftlog.snapshots.model import StagedState, live_set_crc
from tests.harness.steps import calls_of
from tests.raftlog.replication.transfer_world import LIMITS, World, manifest_of

LIVE = IndexSet.from_sorted([100, 600, 1200, 1777])
STATE = b"the state, in a few chunks " * 8
MANIFEST = manifest_of(2000, 3, LIVE, STATE)
FIRST = Envelope(transfer=42, attempt=1, term=3)
WRITE = WriteState(0, STATE)


def entry_of(index: int) -> Entry:
    return Entry(index, 2, b"payload %d" % index)


def aborted(effects: list[Effect]) -> TransferAborted:
    """The named abort that a transfer ended in."""
    finished = effects[-1]
    assert isinstance(finished, Finished)
    assert isinstance(finished.outcome, Failed)
    assert isinstance(finished.outcome.error, TransferAborted)
    return finished.outcome.error


def sent(effects: list[Effect]) -> list[Any]:
    return [effect.message for effect in effects if isinstance(effect, Send)]


def receiver(**kwargs: Any) -> SnapshotReceiver:
    return SnapshotReceiver(**{"term": 3, "life": 5, "limits": LIMITS, **kwargs})


def sender(**kwargs: Any) -> SnapshotSender:
    return SnapshotSender(MANIFEST, LIVE, **{"term": 3, "transfer": 42, "log_id": "log", "limits": LIMITS, **kwargs})


def accepted(at: Position | None = None, last_applied: int = 1500) -> SnapshotSender:
    """A sender whose offer was accepted."""
    made = sender()
    made.start(0.0)
    made.receive(Progress(FIRST, at or Position(Phase.LIVE, 0), last_applied, 5), 0.0)
    return made


# -- which entries


@pytest.mark.parametrize(("last_applied", "is_enough"), [(1989, False), (1990, True), (1999, True)])
def test_a_follower_that_is_a_little_behind_is_to_be_sent_entries(last_applied: int, is_enough: bool) -> None:
    """What a snapshot keeps of the entries before it is not worth a transfer."""
    taker, giver = receiver(), sender(kept_from=1990)
    offer = sent(giver.start(0.0))[0]
    answer = sent(taker.receive(offer, 0.0, last_applied=last_applied))[0]
    messages = sent(giver.receive(answer, 0.0))
    if not is_enough:
        assert isinstance(messages[0], LiveChunk)
        return
    assert isinstance(giver.outcome, Skipped)
    assert "every entry from 1990 on; go on with those" in giver.outcome.reason
    assert aborted(taker.receive(messages[0], 0.0, last_applied=last_applied)).reason is AbortReason.ALREADY_APPLIED
    assert (taker.stage, giver.stage) == ("idle", "over")


@pytest.mark.parametrize(("last_applied", "needed"),
                         [(1500, [1777]), (1100, [1200, 1777]), (0, [100, 600, 1200, 1777]), (1777, []),
                          (-1, [100, 600, 1200, 1777])])
def test_a_follower_needs_what_lies_above_its_last_applied(last_applied: int, needed: list[int]) -> None:
    assert list(needed_entries(LIVE, last_applied)) == needed
    world = World(random.Random(1))
    taker, giver = receiver(), sender()
    offer = sent(giver.start(0.0))[0]
    answer = sent(taker.receive(offer, 0.0, last_applied=last_applied))[0]
    effects = giver.receive(answer, 0.0)
    live = [message for message in sent(effects) if isinstance(message, LiveChunk)]
    assert b"".join(chunk.data for chunk in live) == LIVE.to_bytes()
    asked = effects[-1]
    if needed:
        assert isinstance(asked, ReadEntries)
        assert list(asked.indexes) == needed
    else:
        assert isinstance(asked, ReadState)
    del world


def chunk_sizes(live: IndexSet, payload: int, chunk_bytes: int) -> list[int]:
    """How many entries each chunk of a transfer holds."""
    manifest = manifest_of(1000, 3, live, b"")
    giver = SnapshotSender(manifest, live, term=3, transfer=1, log_id="log",
                           limits=TransferLimits(chunk_bytes=chunk_bytes, window_bytes=1 << 30))
    giver.start(0.0)
    effects = giver.receive(Progress(Envelope(1, 1, 3), Position(Phase.LIVE, 0), -1, 5), 0.0)
    sizes = []
    while effects and isinstance(effects[-1], ReadEntries):
        asked = effects[-1]
        count = max(asked.max_bytes // payload, 1)
        effects = giver.entries_read(asked, [Entry(index, 1, bytes(payload)) for index in asked.indexes][:count], 0.0)
        sizes += [len(message.entries) for message in sent(effects) if isinstance(message, EntryChunk)]
    return sizes


def test_chunks_go_by_bytes_not_by_sixteen() -> None:
    """Ra sends 50 entries as 16, 16, 16, 2 whatever their size; here the bytes count."""
    live = IndexSet.range(1, 50)
    assert chunk_sizes(live, 100, 1600) == [16, 16, 16, 2]
    assert chunk_sizes(live, 100, 1 << 20) == [50]
    assert chunk_sizes(live, 5000, 1600) == [1] * 50


def test_what_is_applied_is_refused_and_the_leader_moves_on() -> None:
    for last_applied in (2000, 2001):
        giver = sender()
        answer = sent(receiver().receive(sent(giver.start(0.0))[0], 0.0, last_applied=last_applied))
        assert answer == [Refusal(FIRST, AbortReason.ALREADY_APPLIED, last_applied,
                                  f"entries up to {last_applied} are applied")]
        (finished,) = giver.receive(answer[0], 0.0)
        assert isinstance(finished, Finished)
        assert isinstance(finished.outcome, Skipped)
        assert f"go on with entries from {last_applied + 1}" in finished.outcome.reason


def test_entries_are_pinned_for_as_long_as_they_may_be_sent_again() -> None:
    """The leader drops what a newer snapshot leaves dead; what is under way stays until the transfer is over."""
    world = World(random.Random(4), commands=60)
    world.start_sender()
    for _ in range(5):
        world.deliver(0)
        world.compact_both(40)
        assert all(index in world.leader.log for index in world.sent.live)
    world.settle()
    assert isinstance(world.sender_outcome, Done)
    assert world.follower.installed == [world.sent.manifest]
    world.compact_both(200)
    assert not all(index in world.leader.log for index in world.sent.live)


def test_checksums_reach_from_the_leaders_log_to_the_followers() -> None:
    """A frame's own CRC cannot see what was damaged before the frame was made: the entry's own CRC does."""
    taker = at_entries()
    bad = SentEntry(1777, 2, SentEntry.of(entry_of(1777)).crc, b"payload 1778")
    effects = taker.receive(EntryChunk(FIRST, 1500, (bad,)), 0.0, last_applied=1500)
    assert aborted(effects).reason is AbortReason.DAMAGED
    assert not any(isinstance(effect, WriteEntries) for effect in effects)
    assert effects[1] == DiscardInstall(MANIFEST)


def test_the_live_set_of_a_transfer_is_that_of_its_snapshot_whatever_the_leader_does() -> None:
    """Ra 5a63636e: the list was emptied by a newer snapshot while it was being sent."""
    with pytest.raises(InvalidInput, match="the live set has 0 members"):
        SnapshotSender(MANIFEST, IndexSet(), term=3, transfer=1, log_id="log")
    with pytest.raises(InvalidInput, match="read it from the same snapshot"):
        SnapshotSender(MANIFEST, LIVE - IndexSet.range(100, 100), term=3, transfer=1, log_id="log")


# -- the receiver


def at_entries(**kwargs: Any) -> SnapshotReceiver:
    """A receiver that has the live set and needs 1777."""
    taker = receiver(**kwargs)
    taker.receive(Offer(FIRST, MANIFEST, "log"), 0.0, last_applied=1500)
    taker.receive(LiveChunk(FIRST, 0, LIVE.to_bytes()), 0.0, last_applied=1500)
    return taker


def at_state(**kwargs: Any) -> SnapshotReceiver:
    """A receiver that has all entries."""
    taker = at_entries(**kwargs)
    taker.receive(EntryChunk(FIRST, 1500, (SentEntry.of(entry_of(1777)),)), 0.0, last_applied=1500)
    return taker


def test_a_whole_transfer_step_by_step() -> None:
    taker = receiver()
    assert taker.receive(Offer(FIRST, MANIFEST, "log"), 1.0, last_applied=1500) == [
        BeginInstall(MANIFEST, 0), Send(Progress(FIRST, Position(Phase.LIVE, 0), 1500, 5))]
    assert taker.receive(LiveChunk(FIRST, 0, LIVE.to_bytes()), 1.0, last_applied=1500) == [
        Send(Progress(FIRST, Position(Phase.ENTRIES, 1500), 1500, 5))]
    assert taker.receive(EntryChunk(FIRST, 1500, (SentEntry.of(entry_of(1777)),)), 1.0, last_applied=1500) == [
        WriteEntries(1500, (entry_of(1777),)), Send(Progress(FIRST, Position(Phase.STATE, 0), 1500, 5))]
    assert taker.receive(StateChunk(FIRST, 0, STATE), 2.0, last_applied=1500) == [
        WriteState(0, STATE), Send(Progress(FIRST, Position(Phase.END, 0), 1500, 5)), AwaitEntries(1777)]
    # Completion waits until the entries are durable; meanwhile a probe is answered.
    assert taker.entries_durable(1776, 2.0) == []
    assert taker.receive(Probe(FIRST), 3.0, last_applied=1500) == [
        Send(Progress(FIRST, Position(Phase.END, 0), 1500, 5))]
    assert taker.deadline is None
    assert taker.entries_durable(1777, 3.0) == [InstallSnapshot(MANIFEST, LIVE)]
    finished, told = taker.installed(4.0)
    assert told == Send(Installed(FIRST, 2000))
    assert isinstance(finished, Finished)
    assert isinstance(finished.outcome, Done)
    assert (finished.outcome.stats.entries, finished.outcome.stats.seconds) == (1, 3.0)
    # Should the answer be lost, it is given again.
    assert taker.receive(Probe(FIRST), 5.0, last_applied=2000) == [Send(Installed(FIRST, 2000))]
    assert taker.receive(Offer(FIRST, MANIFEST, "log"), 5.0, last_applied=2000) == [Send(Installed(FIRST, 2000))]


def test_a_gap_in_the_sparse_sequence_is_never_written() -> None:
    taker = receiver()
    taker.receive(Offer(FIRST, MANIFEST, "log"), 0.0, last_applied=0)
    taker.receive(LiveChunk(FIRST, 0, LIVE.to_bytes()), 0.0, last_applied=0)
    late = EntryChunk(FIRST, 600, (SentEntry.of(entry_of(1200)),))
    assert taker.receive(late, 0.0, last_applied=0) == [Send(Progress(FIRST, Position(Phase.ENTRIES, 0), 0, 5))]
    wrong = EntryChunk(FIRST, 0, (SentEntry.of(entry_of(100)), SentEntry.of(entry_of(1200))))
    error = aborted(taker.receive(wrong, 0.0, last_applied=0))
    assert error.reason is AbortReason.OUT_OF_STEP
    assert "after entry 0 came [100, 1200]" in error.detail


def test_a_live_set_that_is_not_the_offered_one_is_never_taken() -> None:
    other = IndexSet.from_sorted([100, 600, 1200, 1776])
    # As long, as many members, and whole: only a CRC that leaves out the set's own CRC tells the two apart.
    assert crc32(other.to_bytes()) == crc32(LIVE.to_bytes())
    for data in (other.to_bytes(), bytes(MANIFEST.live_bytes)):
        assert len(data) == MANIFEST.live_bytes
        taker = receiver()
        taker.receive(Offer(FIRST, MANIFEST, "log"), 0.0, last_applied=0)
        assert aborted(taker.receive(LiveChunk(FIRST, 0, data), 0.0, last_applied=0)).reason is AbortReason.DAMAGED
    # A manifest that agrees with bytes that are no live set, or one that reaches above the snapshot.
    garbage = attrs.evolve(MANIFEST, live_crc=live_set_crc(bytes(MANIFEST.live_bytes)))
    above = manifest_of(1500, 3, LIVE, STATE)
    for manifest, data in ((garbage, bytes(MANIFEST.live_bytes)), (above, LIVE.to_bytes())):
        taker = receiver()
        taker.receive(Offer(FIRST, manifest, "log"), 0.0, last_applied=0)
        assert aborted(taker.receive(LiveChunk(FIRST, 0, data), 0.0, last_applied=0)).reason is AbortReason.DAMAGED


def test_a_damaged_state_is_never_installed_and_not_kept() -> None:
    taker = at_state()
    effects = taker.receive(StateChunk(FIRST, 0, STATE[:-1] + b"?"), 0.0, last_applied=1500)
    assert aborted(effects).reason is AbortReason.DAMAGED
    assert DiscardInstall(MANIFEST, keep_state=False) in effects
    assert not any(isinstance(effect, InstallSnapshot | AwaitEntries) for effect in effects)


def test_an_entry_of_a_later_term_than_its_snapshot_is_refused() -> None:
    taker = at_entries()
    effects = taker.receive(EntryChunk(FIRST, 1500, (SentEntry.of(Entry(1777, 4, b"")),)), 0.0, last_applied=1500)
    assert aborted(effects).reason is AbortReason.DAMAGED


def test_more_than_was_announced_is_out_of_step() -> None:
    tries: list[tuple[SnapshotReceiver, FromSender]] = [
        (receiver(), LiveChunk(FIRST, 0, LIVE.to_bytes() + b"x")), (at_state(), StateChunk(FIRST, 0, STATE + b"x")),
        (at_state(), StateChunk(FIRST, 0, b"")), (at_entries(), EntryChunk(FIRST, 1500, ()))]
    for taker, chunk in tries:
        taker.receive(Offer(FIRST, MANIFEST, "log"), 0.0, last_applied=1500)
        assert aborted(taker.receive(chunk, 0.0, last_applied=1500)).reason is AbortReason.OUT_OF_STEP


def test_offers_that_cannot_be_taken_are_refused_by_name() -> None:
    newer = attrs.evolve(MANIFEST, machine_version=7)
    (answer,) = sent(receiver(machine_versions=(0, 6)).receive(Offer(FIRST, newer, "log"), 0.0, last_applied=0))
    assert answer.reason is AbortReason.UNSUPPORTED
    assert "machine version 7, this member restores 0 to 6" in answer.detail
    small = receiver(limits=TransferLimits(max_live_bytes=3))
    (answer,) = sent(small.receive(Offer(FIRST, MANIFEST, "log"), 0.0, last_applied=0))
    assert answer.reason is AbortReason.TOO_LARGE
    (answer,) = sent(receiver(term=4).receive(Offer(FIRST, MANIFEST, "log"), 0.0, last_applied=0))
    assert (answer.reason, answer.envelope.term) == (AbortReason.HIGHER_TERM, 4)


def test_a_newer_snapshot_takes_the_place_of_one_under_way_and_an_older_one_does_not() -> None:
    taker = at_state()
    newer, older = manifest_of(3000, 3, LIVE, STATE), manifest_of(1900, 3, LIVE, STATE)
    second = Envelope(43, 1, 3)
    (answer,) = sent(taker.receive(Offer(second, older, "log"), 0.0, last_applied=1500))
    assert answer.reason is AbortReason.SUPERSEDED
    effects = taker.receive(Offer(second, newer, "log"), 0.0, last_applied=1500)
    assert [type(effect) for effect in effects] == [Send, DiscardInstall, Finished, BeginInstall, Send]
    assert taker.meta == newer
    (answer,) = sent(taker.receive(Probe(FIRST), 0.0, last_applied=1500))
    assert isinstance(answer, Unknown)


def test_nothing_takes_the_place_of_an_install() -> None:
    taker = at_state()
    taker.receive(StateChunk(FIRST, 0, STATE), 0.0, last_applied=1500)
    taker.entries_durable(1777, 0.0)
    newer = Offer(Envelope(43, 1, 3), manifest_of(3000, 3, LIVE, STATE), "log")
    (answer,) = sent(taker.receive(newer, 0.0, last_applied=1500))
    assert answer.reason is AbortReason.SUPERSEDED
    assert taker.receive(Withdrawal(FIRST, AbortReason.CANCELLED, ""), 0.0, last_applied=1500) == []
    assert taker.cancel("no") == []
    assert taker.observe_term(9) == []
    assert taker.tick(1e9) == []
    assert taker.stage == "installing"
    with pytest.raises(InvalidInput, match="answers InstallSnapshot"):
        receiver().installed(0.0)


def test_a_higher_term_ends_a_transfer_on_either_side() -> None:
    taker = at_state()
    assert aborted(taker.observe_term(4)).reason is AbortReason.HIGHER_TERM
    assert taker.observe_term(4) == []
    taker = at_state()
    other = attrs.evolve(FIRST, transfer=1, term=5)
    effects = taker.receive(Probe(other), 0.0, last_applied=1500)
    assert effects[0] == TermSeen(5)
    assert isinstance(effects[-1], Send)
    assert taker.stage == "idle"
    giver = accepted()
    assert giver.observe_term(3, 0.0) == []
    effects = giver.observe_term(4, 0.0)
    assert (aborted(effects).reason, aborted(effects).term) == (AbortReason.HIGHER_TERM, 4)
    assert isinstance(sent(effects)[0], Withdrawal)
    effects = accepted().receive(Refusal(attrs.evolve(FIRST, term=8), AbortReason.HIGHER_TERM, 0, ""), 0.0)
    assert (aborted(effects).reason, aborted(effects).term) == (AbortReason.HIGHER_TERM, 8)


def test_a_new_leader_with_the_same_snapshot_goes_on_where_the_old_one_was() -> None:
    taker = at_state()
    taker.receive(StateChunk(FIRST, 0, STATE[:50]), 0.0, last_applied=1500)
    leader = Envelope(99, 1, 6)
    assert taker.receive(Offer(leader, MANIFEST, "log"), 0.0, last_applied=1500) == [
        TermSeen(6), Send(Progress(leader, Position(Phase.STATE, 50), 1500, 5))]
    giver = sender(term=6, transfer=99)
    giver.start(0.0)
    effects = giver.receive(Progress(leader, Position(Phase.STATE, 50), 1500, 5), 0.0)
    assert effects == [ReadState(50, 64)]


def test_an_offer_that_has_to_wait_is_made_again_for_as_long_as_it_is_answered() -> None:
    giver, taker = sender(), receiver()
    (offer,) = sent(giver.start(0.0))
    now = 0.0
    for _ in range(100):
        assert sent(taker.receive(offer, now, last_applied=1500, has_room=False)) == [Wait(FIRST)]
        assert taker.stage == "idle"
        assert giver.receive(Wait(FIRST), now) == []
        assert giver.deadline is not None
        now = giver.deadline
        assert sent(giver.tick(now)) == [offer]
    # Without an answer it is given up; and what is refused need not wait for that.
    assert aborted(giver.tick(now + LIMITS.sender_seconds)).reason is AbortReason.TIMED_OUT
    (answer,) = sent(taker.receive(offer, now, last_applied=2000, has_room=False))
    assert isinstance(answer, Refusal)
    assert answer.reason is AbortReason.ALREADY_APPLIED
    # One that is under way goes on.
    taker.receive(offer, now, last_applied=1500)
    (answer,) = sent(taker.receive(attrs.evolve(offer, envelope=attrs.evolve(FIRST, attempt=2)), now, last_applied=1500,
                                   has_room=False))
    assert isinstance(answer, Progress)
    assert taker.transfers == {42}


def test_silence_ends_a_transfer_and_what_is_here_of_the_state_serves_the_next() -> None:
    taker = at_state()
    taker.receive(StateChunk(FIRST, 0, STATE[:64]), 1.0, last_applied=1500)
    assert taker.deadline == 1.0 + LIMITS.receiver_seconds
    assert taker.tick(20.9) == []
    effects = taker.tick(21.0)
    assert aborted(effects).reason is AbortReason.TIMED_OUT
    assert DiscardInstall(MANIFEST, keep_state=True) in effects
    second = Envelope(43, 1, 3)
    assert taker.receive(Offer(second, MANIFEST, "log"), 22.0, last_applied=1500)[0] == BeginInstall(MANIFEST, 64)
    taker.receive(LiveChunk(second, 0, LIVE.to_bytes()), 22.0, last_applied=1500)
    (_, answer) = taker.receive(EntryChunk(second, 1500, (SentEntry.of(entry_of(1777)),)), 22.0, last_applied=1500)
    assert answer == Send(Progress(second, Position(Phase.STATE, 64), 1500, 5))
    effects = taker.receive(StateChunk(second, 64, STATE[64:]), 22.0, last_applied=1500)
    assert effects[-1] == AwaitEntries(1777)


def test_a_state_staged_by_an_earlier_life_counts_only_for_the_same_snapshot() -> None:
    staged = StagedState(MANIFEST, 64, crc32(STATE[:64]))
    taker = receiver(staged=staged)
    assert taker.receive(Offer(FIRST, MANIFEST, "log"), 0.0, last_applied=1500)[0] == BeginInstall(MANIFEST, 64)
    other = manifest_of(2000, 3, LIVE, STATE + b"!")
    effects = receiver(staged=staged).receive(Offer(FIRST, other, "log"), 0.0, last_applied=1500)
    assert effects[0] == BeginInstall(other, 0)


def test_a_disk_that_refuses_and_a_missing_entry_are_told_by_name() -> None:
    full = DiskFull(operation="write", path="x", errno=28)
    assert aborted(at_state().failed(full, WRITE)).reason is AbortReason.DISK_REFUSED
    assert aborted(at_state().failed(CorruptData(path="x", offset=0, expected="a", found="b"), WRITE)).reason is \
        AbortReason.DAMAGED
    assert aborted(at_state().failed(NotFound("no entry"), WRITE)).reason is AbortReason.OUT_OF_STEP
    effects = at_state().failed(LiveIndexMissing("gone", missing=1, first=600), WRITE)
    assert aborted(effects).reason is AbortReason.LIVE_MISSING
    (refusal,) = sent(effects)
    effects = accepted().receive(refusal, 0.0)
    assert (aborted(effects).reason, aborted(effects).last_applied) == (AbortReason.LIVE_MISSING, 1500)
    assert receiver().failed(NotFound(""), WRITE) == []


def test_a_term_that_the_host_could_not_keep_is_said_again() -> None:
    taker = receiver()
    offer = Offer(attrs.evolve(FIRST, term=7), MANIFEST, "log")
    assert taker.receive(offer, 0.0, last_applied=1500)[0] == TermSeen(7)
    taker.failed(DiskFull(operation="write", path="HARD_STATE", errno=28), TermSeen(7))
    assert taker.receive(offer, 0.0, last_applied=1500)[0] == TermSeen(7)
    assert TermSeen(7) not in taker.receive(offer, 0.0, last_applied=1500)


def test_a_term_that_cannot_be_kept_while_a_snapshot_is_installed_does_not_end_that() -> None:
    taker, full = at_state(), DiskFull(operation="write", path="HARD_STATE", errno=28)
    taker.receive(StateChunk(FIRST, 0, STATE), 1.0, last_applied=1500)
    taker.entries_durable(1777, 1.0)
    offer = Offer(attrs.evolve(FIRST, term=7), MANIFEST, "log")
    assert taker.receive(offer, 2.0, last_applied=1500)[0] == TermSeen(7)
    assert taker.failed(full, TermSeen(7)) == []
    assert taker.stage == "installing"
    finished, owed, told = taker.installed(3.0)
    assert isinstance(finished, Finished)
    assert (owed, told) == (TermSeen(7), Send(Installed(attrs.evolve(FIRST, term=7), 2000)))
    assert taker.failed(full, owed) == []
    assert taker.receive(Probe(attrs.evolve(FIRST, term=7)), 4.0, last_applied=2000) == [owed, told]


def test_a_snapshot_that_cannot_be_installed_is_told_by_name() -> None:
    taker = at_state()
    taker.receive(StateChunk(FIRST, 0, STATE), 1.0, last_applied=1500)
    (install,) = taker.entries_durable(1777, 1.0)
    full = DiskFull(operation="rename", path="x", errno=28)
    assert aborted(taker.failed(full, install)).reason is AbortReason.DISK_REFUSED


def test_the_host_can_give_up_on_either_side() -> None:
    taker, giver = at_state(), accepted()
    assert aborted(taker.cancel("shutting down")).reason is AbortReason.CANCELLED
    effects = giver.cancel("shutting down", 0.0)
    (told,) = sent(effects)
    assert aborted(effects).detail == "shutting down"
    taker = at_state()
    effects = taker.receive(told, 0.0, last_applied=1500)
    assert aborted(effects).reason is AbortReason.CANCELLED
    assert sent(effects) == []
    assert taker.receive(told, 0.0, last_applied=1500) == []


# -- the sender


def test_a_window_is_never_exceeded_by_more_than_a_chunk() -> None:
    giver = accepted(Position(Phase.STATE, 0))
    asked = ReadState(0, 64)
    under_way = 0
    for _ in range(20):
        effects = giver.state_read(asked, STATE[asked.offset:asked.offset + asked.length], 0.0)
        under_way += sum(len(message.data) for message in sent(effects))
        if not effects or not isinstance(effects[-1], ReadState):
            break
    assert under_way <= LIMITS.window_bytes + LIMITS.chunk_bytes


def test_each_chunk_of_a_large_window_costs_the_same() -> None:
    """All that was under way was looked at for each that was acknowledged, and added up for each that was sent."""
    calls = []
    for count in (50, 200):
        manifest = manifest_of(2000, 3, LIVE, bytes(count))
        giver = SnapshotSender(manifest, LIVE, term=3, transfer=42, log_id="log",
                               limits=attrs.evolve(LIMITS, chunk_bytes=1, window_bytes=1 << 20))
        giver.start(0.0)

        def work(giver: SnapshotSender = giver, count: int = count) -> None:
            effects = giver.receive(Progress(FIRST, Position(Phase.STATE, 0), 1500, 5), 0.0)
            while effects:
                assert isinstance(effects[-1], ReadState)
                effects = giver.state_read(effects[-1], b"0", 0.0)
                effects = [effect for effect in effects if isinstance(effect, ReadState)]
            for offset in range(1, count + 1):
                giver.receive(Progress(FIRST, Position(Phase.STATE, offset), 1500, 5), 0.0)
            giver.receive(Progress(FIRST, Position(Phase.END, 0), 1500, 5), 0.0)

        calls.append(calls_of(work).total())
        assert giver.stage == "waiting"
    assert calls[1] < 5 * calls[0], calls


def test_an_answer_to_a_read_that_a_step_back_has_overtaken_is_passed_over() -> None:
    giver = accepted(Position(Phase.STATE, 0))
    effects = giver.tick(1.0)
    assert isinstance(sent(effects)[0], Probe)
    assert giver.state_read(ReadState(0, 64), STATE[:64], 1.0) == []
    assert giver.entries_read(ReadEntries(LIVE, 1), [entry_of(100)], 1.0) == []
    asked = effects[-1]
    assert isinstance(asked, ReadState)
    assert isinstance(sent(giver.state_read(asked, STATE[:64], 1.0))[0], StateChunk)


def test_an_answer_is_not_sent_where_the_receiver_turned_out_to_be_further() -> None:
    """Found between two processes: the receiver's word came while entries were read that it had already."""
    giver = sender()
    giver.start(0.0)
    (asked,) = giver.receive(Progress(FIRST, Position(Phase.ENTRIES, 0), 0, 5), 0.0)
    assert isinstance(asked, ReadEntries)
    assert giver.receive(Progress(FIRST, Position(Phase.ENTRIES, 600), 0, 5), 0.0) == []
    (again,) = giver.entries_read(asked, [entry_of(100)], 0.0)
    assert isinstance(again, ReadEntries)
    assert list(again.indexes) == [1200, 1777]


def test_a_source_that_cannot_be_read_ends_the_transfer_by_name() -> None:
    giver = accepted(Position(Phase.STATE, 0))
    assert aborted(giver.read_failed(NotFound("segment gone"), 0.0)).reason is AbortReason.SOURCE_LOST

    def reading(phase: Phase) -> tuple[SnapshotSender, Any]:
        made = sender()
        made.start(0.0)
        at = Position(phase, 0 if phase is Phase.STATE else 1500)
        return made, made.receive(Progress(FIRST, at, 1500, 5), 0.0)[-1]

    giver, asked = reading(Phase.STATE)
    assert "the state ends at 5 bytes" in aborted(giver.state_read(asked, b"short", 0.0)).detail
    giver, asked = reading(Phase.ENTRIES)
    assert "1776 to 1776 were read" in aborted(giver.entries_read(asked, [entry_of(1776)], 0.0)).detail
    giver, asked = reading(Phase.ENTRIES)
    assert "no entry was read" in aborted(giver.entries_read(asked, [], 0.0)).detail
    giver, asked = reading(Phase.ENTRIES)
    large = Entry(1777, 2, bytes(LIMITS.max_entry_bytes + 1))
    assert aborted(giver.entries_read(asked, [large], 0.0)).reason is AbortReason.TOO_LARGE


def test_a_receiver_of_another_life_is_offered_again() -> None:
    """Found by the simulation: a late offer reached the receiver's next life, whose answers looked merely late."""
    giver = accepted(Position(Phase.STATE, 64))
    effects = giver.receive(Progress(FIRST, Position(Phase.LIVE, 0), 1500, 6), 0.0)
    assert sent(effects) == [Offer(attrs.evolve(FIRST, attempt=2), MANIFEST, "log")]


def test_an_offer_that_was_overtaken_does_not_leave_the_sender_waiting_for_ever() -> None:
    """It takes the receiver back to an earlier attempt; what comes of the later one is answered with `Unknown`."""
    taker, later = at_state(), attrs.evolve(FIRST, attempt=2)
    other = attrs.evolve(FIRST, transfer=43)
    for envelope in (later, other, FIRST):
        (answer,) = sent(taker.receive(Offer(envelope, MANIFEST, "log"), 0.0, last_applied=1500))
        assert answer == Progress(envelope, Position(Phase.STATE, 0), 1500, 5)
    assert taker.receive(Probe(later), 0.0, last_applied=1500) == [Send(Unknown(later))]
    assert taker.receive(Offer(attrs.evolve(FIRST, attempt=3), MANIFEST, "log"), 0.0, last_applied=1500)
    assert taker.receive(Probe(later), 0.0, last_applied=1500) == []


def test_a_staged_state_that_was_torn_is_taken_again_from_its_start() -> None:
    taker = at_state(staged=StagedState(MANIFEST, 64, crc32(b"?" * 64)))
    effects = taker.receive(StateChunk(FIRST, 64, STATE[64:]), 0.0, last_applied=1500)
    assert effects == [WriteState(64, STATE[64:]), Send(Unknown(FIRST))]
    # Should that be lost, it is said again, until there is another offer (found by the simulation).
    for message in (Probe(FIRST), StateChunk(FIRST, 64, STATE[64:]), Offer(FIRST, MANIFEST, "log")):
        assert taker.receive(message, 0.0, last_applied=1500) == [Send(Unknown(FIRST))]
    again = attrs.evolve(FIRST, attempt=2)
    assert sent(taker.receive(Offer(again, MANIFEST, "log"), 0.0, last_applied=1500)) == [
        Progress(again, Position(Phase.STATE, 0), 1500, 5)]
    effects = taker.receive(StateChunk(again, 0, STATE), 0.0, last_applied=1500)
    assert effects[-1] == AwaitEntries(1777)


def test_patience_grows_and_ends() -> None:
    giver = sender()
    giver.start(0.0)
    times = []
    while giver.stage != "over":
        deadline = giver.deadline
        assert deadline is not None
        times.append(deadline)
        giver.tick(deadline)
    assert times == [1.0, 3.0, 7.0, 15.0, 23.0, 30.0]
    assert giver.deadline is None
    assert isinstance(giver.outcome, Failed)


def test_messages_of_others_change_nothing() -> None:
    giver = accepted()
    stranger = attrs.evolve(FIRST, transfer=1)
    late = attrs.evolve(FIRST, attempt=7)
    for envelope in (stranger, late):
        assert giver.receive(Progress(envelope, Position(Phase.END, 0), 0, 5), 0.0) == []
        assert giver.receive(Unknown(envelope), 0.0) == []
        assert giver.receive(Refusal(envelope, AbortReason.DAMAGED, 0, ""), 0.0) == []
    assert giver.receive(Installed(FIRST, 1999), 0.0) == []
    assert giver.stage == "sending"
    with pytest.raises(InvalidInput, match="started before"):
        giver.start(0.0)


@pytest.mark.parametrize("name", ["chunk_bytes", "max_entry_bytes"])
def test_a_limit_that_no_frame_holds_is_refused(name: str) -> None:
    """The receiver ended the line at each such frame, was heard over the next one, and so for ever."""
    most = 79_934_464
    TransferLimits(**{name: most})
    with pytest.raises(InvalidInput, match=f"{name} is {most + 1}; at most {most} fit into a frame"):
        TransferLimits(**{name: most + 1})
    heads = EntryChunk(FIRST, 0, tuple(SentEntry.of(Entry(index, 1, b"")) for index in range(1024)))
    assert frame_length((len(encode(heads)) + most).to_bytes(4, "little"))


def test_limits_are_above_zero() -> None:
    with pytest.raises(InvalidInput, match="chunk_bytes is 0"):
        TransferLimits(chunk_bytes=0)


@given(st.sets(st.integers(0, 5000), max_size=40), st.integers(-1, 5001), st.integers(1, 5))
def test_the_next_entries_are_found_as_by_counting(members: set[int], previous: int, count: int) -> None:
    sequence = EntrySequence(IndexSet.from_iterable(members))
    above = sorted(index for index in members if index > previous)
    assert list(sequence.after(previous)) == above[:1024]
    assert sequence.follows(previous, above[:count])
    if above[:count]:
        assert not sequence.follows(previous, above[1:count + 1]) or above[1:count + 1] == []


def test_sequences_longer_than_a_block_are_followed() -> None:
    sequence = EntrySequence(IndexSet.from_iterable(range(0, 6000, 2)))
    assert sequence.follows(-1, list(range(0, 6000, 2)))
    assert not sequence.follows(-1, [*range(0, 4000, 2), 4002])
    assert not sequence.follows(5998, [6000])


def test_a_live_set_that_claims_more_than_any_log_holds_takes_no_room() -> None:
    """Its runs were cut into blocks of 1024 members at once: 26 bytes took the memory of the node."""
    live = IndexSet.range(1, 1 << 60)
    manifest = manifest_of(1 << 60, 3, live, STATE)
    one = receiver()
    one.receive(Offer(FIRST, manifest, "log"), 0.0, last_applied=1500)
    progress, = sent(one.receive(LiveChunk(FIRST, 0, live.to_bytes()), 0.0, last_applied=1500))
    assert progress.position == Position(Phase.ENTRIES, 1500)
    assert EntrySequence(live).after(1 << 59).members() == list(range((1 << 59) + 1, (1 << 59) + 1025))
    assert not EntrySequence(live).after(1 << 60)
