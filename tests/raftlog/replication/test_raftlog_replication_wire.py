# SPDX-License-Identifier: Apache-2.0
"""The frames of a transfer: what is sent is read, byte for byte as the page says, and damage has a name."""

from __future__ import annotations

import contextlib
import random
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from compactlib.errors import InvalidInput, Unsupported
from compactlib.raftlog.model.values import MAX_INDEX
from compactlib.raftlog.replication.errors import AbortReason, FrameDamaged
from compactlib.raftlog.replication.messages import (
    EntryChunk,
    Envelope,
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
    TransferMessage,
    Unknown,
    Wait,
    Withdrawal,
)
from compactlib.raftlog.replication.wire import (
    LENGTH_BYTES,
    MAX_FRAME_BYTES,
    MAX_TEXT_BYTES,
    decode,
    encode,
    frame_length,
)
from compactlib.raftlog.snapshots.model import SnapshotManifest

GOLDEN = Path(__file__).parents[2] / "promises" / "golden" / "raftlog" / "transfer_frames.bin"
PAGE = Path(__file__).parents[3] / "docs" / "formats" / "raftlog-transfer.md"
ENVELOPE = Envelope(transfer=0x0102030405060708, attempt=2, term=9)
MANIFEST = SnapshotManifest(index=2000, term=3, machine_version=1, cluster=b"abc", live_count=4, live_bytes=31,
                            live_crc=7, state_bytes=12, state_crc=8)
ENTRIES = (SentEntry(600, 2, 0x01020304, b"six hundred"), SentEntry(1200, 3, 5, b""))
SAMPLES: tuple[TransferMessage, ...] = (
    Offer(ENVELOPE, MANIFEST, "orders-7"),
    LiveChunk(ENVELOPE, 16, b"live"),
    EntryChunk(ENVELOPE, -1, ENTRIES),
    EntryChunk(ENVELOPE, 599, ENTRIES[1:]),
    StateChunk(ENVELOPE, 1 << 40, b"state"),
    Probe(ENVELOPE),
    Withdrawal(ENVELOPE, AbortReason.CANCELLED, "shutting down"),
    Progress(ENVELOPE, Position(Phase.ENTRIES, -1), -1, 77),
    Progress(ENVELOPE, Position(Phase.STATE, 12), 599, 77),
    Unknown(ENVELOPE),
    Installed(ENVELOPE, 2000),
    Refusal(ENVELOPE, AbortReason.ALREADY_APPLIED, 2001, "é"),
    Wait(ENVELOPE),
)
NUMBERS = st.integers(0, MAX_INDEX)
BLOBS = st.binary(max_size=40)
ENVELOPES = st.builds(Envelope, NUMBERS, st.integers(0, (1 << 32) - 1), NUMBERS)
APPLIED = st.integers(-1, MAX_INDEX - 1)
POSITIONS = st.one_of(st.builds(Position, st.sampled_from([Phase.LIVE, Phase.STATE]), NUMBERS),
                      st.builds(Position, st.just(Phase.ENTRIES), APPLIED), st.just(Position(Phase.END, 0)))
U32 = st.integers(0, (1 << 32) - 1)
MANIFESTS = st.builds(SnapshotManifest, index=NUMBERS, term=NUMBERS, machine_version=U32, cluster=BLOBS,
                      live_count=NUMBERS, live_bytes=NUMBERS, live_crc=U32, state_bytes=NUMBERS, state_crc=U32)
MESSAGES: st.SearchStrategy[TransferMessage] = st.one_of(
    st.builds(Offer, ENVELOPES, MANIFESTS, st.text(max_size=20)), st.builds(LiveChunk, ENVELOPES, NUMBERS, BLOBS),
    st.builds(EntryChunk, ENVELOPES, APPLIED,
              st.lists(st.builds(SentEntry, NUMBERS, NUMBERS, U32, BLOBS), max_size=4).map(tuple)),
    st.builds(StateChunk, ENVELOPES, NUMBERS, BLOBS), st.builds(Probe, ENVELOPES),
    st.builds(Withdrawal, ENVELOPES, st.sampled_from(AbortReason), st.text(max_size=20)),
    st.builds(Progress, ENVELOPES, POSITIONS, APPLIED, NUMBERS), st.builds(Unknown, ENVELOPES),
    st.builds(Wait, ENVELOPES),
    st.builds(Installed, ENVELOPES, NUMBERS),
    st.builds(Refusal, ENVELOPES, st.sampled_from(AbortReason), APPLIED, st.text(max_size=20)))


@given(MESSAGES)
def test_what_is_sent_is_read(message: TransferMessage) -> None:
    frame = encode(message)
    assert frame_length(frame[:LENGTH_BYTES]) == len(frame) - LENGTH_BYTES
    assert decode(frame[LENGTH_BYTES:]) == message


def frames_in(path: Path) -> list[bytes]:
    data, found = path.read_bytes(), []
    while data:
        end = LENGTH_BYTES + frame_length(data[:LENGTH_BYTES])
        found.append(data[LENGTH_BYTES:end])
        data = data[end:]
    return found


def test_frames_stay_as_they_are() -> None:
    assert tuple(map(decode, frames_in(GOLDEN))) == SAMPLES
    assert b"".join(map(encode, SAMPLES)) == GOLDEN.read_bytes()


def test_a_log_id_that_does_not_fit_is_refused() -> None:
    encode(Offer(ENVELOPE, MANIFEST, "é" * 127))
    with pytest.raises(InvalidInput, match="256 bytes; at most 255"):
        encode(Offer(ENVELOPE, MANIFEST, "é" * 128))


def test_the_frame_on_the_page_is_as_this_release_writes_it() -> None:
    block = PAGE.read_text().split("```hex\n")[1].split("```")[0]
    shown = bytes.fromhex("".join(line[4:] for line in block.splitlines()))
    assert encode(EntryChunk(Envelope(7, 1, 3), 599, (SentEntry(600, 2, 0x915C69B3, b"hello"),))) == shown


def test_every_flipped_byte_and_every_cut_is_damage_by_name() -> None:
    for message in SAMPLES:
        frame = encode(message)[LENGTH_BYTES:]
        for place in range(len(frame)):
            for mask in (0x01, 0x80, 0xFF):
                with pytest.raises(FrameDamaged):
                    decode(frame[:place] + bytes([frame[place] ^ mask]) + frame[place + 1:])
            with pytest.raises(FrameDamaged):
                decode(frame[:place])
        with pytest.raises(FrameDamaged):
            decode(frame + b"\0")


def resealed(body: bytes) -> bytes:
    """A frame whose checksum fits whatever it says."""
    return body + struct.pack("<I", zlib.crc32(body))


@settings(max_examples=300)
@given(st.sampled_from(SAMPLES), st.randoms(use_true_random=False))
def test_a_frame_that_lies_with_a_good_checksum_is_damage_or_a_message(message: TransferMessage,
                                                                      rng: random.Random) -> None:
    body = bytearray(encode(message)[LENGTH_BYTES:-4])
    for _ in range(rng.randrange(1, 4)):
        body[rng.randrange(len(body))] = rng.randrange(256)
    if rng.random() < 0.3:
        del body[rng.randrange(len(body)):]
    with contextlib.suppress(FrameDamaged, Unsupported):
        decode(resealed(bytes(body)))


def test_a_later_release_is_told_from_damage() -> None:
    body = bytearray(encode(Probe(ENVELOPE))[LENGTH_BYTES:-4])
    with pytest.raises(Unsupported, match="message 5 of version 3"):
        decode(resealed(bytes([body[0], 3, *body[2:]])))
    with pytest.raises(Unsupported, match="message 12 of version 2"):
        decode(resealed(bytes([12, *body[1:]])))
    for wrong in (bytes([0, *body[1:]]), bytes([5, 0, *body[2:]]), bytes([5, 2, 1, *body[3:]])):
        with pytest.raises(FrameDamaged):
            decode(resealed(wrong))


def test_a_length_out_of_bounds_is_refused_before_anything_is_read() -> None:
    for length in (0, 27, MAX_FRAME_BYTES + 1, (1 << 32) - 1):
        with pytest.raises(FrameDamaged):
            frame_length(struct.pack("<I", length))


def test_text_is_cut_at_a_whole_character() -> None:
    message = decode(encode(Withdrawal(ENVELOPE, AbortReason.CANCELLED, "é" * MAX_TEXT_BYTES))[LENGTH_BYTES:])
    assert isinstance(message, Withdrawal)
    assert message.detail == "é" * (MAX_TEXT_BYTES // 2)


@pytest.mark.parametrize("message", [Withdrawal(ENVELOPE, AbortReason.CANCELLED, "x" * MAX_TEXT_BYTES),
                                     Refusal(ENVELOPE, AbortReason.CANCELLED, 7, "x" * MAX_TEXT_BYTES)])
def test_more_text_than_is_ever_sent_is_damage(message: TransferMessage) -> None:
    """A node keeps the reasons of its last thousand transfers: a sender could give 80 MB for each."""
    assert decode(encode(message)[LENGTH_BYTES:]) == message
    with pytest.raises(FrameDamaged, match="1001 bytes of text, at most 1000"):
        decode(resealed(encode(message)[LENGTH_BYTES:-4] + b"x"))


def test_the_last_index_of_all_as_last_applied_is_told_as_the_one_before() -> None:
    message = decode(encode(Refusal(ENVELOPE, AbortReason.ALREADY_APPLIED, MAX_INDEX, ""))[LENGTH_BYTES:])
    assert isinstance(message, Refusal)
    assert message.last_applied == MAX_INDEX - 1


def test_a_manifest_refuses_impossible_numbers() -> None:
    with pytest.raises(InvalidInput, match="live_count is -1"):
        SnapshotManifest(index=1, term=1, live_count=-1, live_bytes=1, live_crc=0, state_bytes=0, state_crc=0)
    with pytest.raises(InvalidInput, match="state_crc is 4294967296"):
        SnapshotManifest(index=1, term=1, live_count=0, live_bytes=1, live_crc=0, state_bytes=0, state_crc=1 << 32)
    with pytest.raises(InvalidInput, match="cluster bytes are 65537"):
        SnapshotManifest(index=1, term=1, cluster=bytes(65537), live_count=0, live_bytes=1, live_crc=0, state_bytes=0,
                         state_crc=0)
