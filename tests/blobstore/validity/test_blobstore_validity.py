# SPDX-License-Identifier: Apache-2.0
"""What a compaction keeps: cases with known answers, and the rules against a slower second opinion."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, strategies as st

from compactlib.blobstore import RecordKind
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.model.values import NO_EXPIRY, IndexEntry, RecordFlag
from compactlib.blobstore.store.state import blob_state
from compactlib.blobstore.validity.verdicts import PurgeRules, Rules, Verdict, judge, judge_one
from compactlib.errors import CorruptData

KINDS = {"P": RecordKind.PUT, "D": RecordKind.DELETE, "T": RecordKind.TTL_UPDATE, "U": RecordKind.UNDELETE}
LATER = Rules(reference_ms=1_000_000, now_ms=1_000_000)
"""Every delete is in effect."""
NEVER = Rules(reference_ms=0, now_ms=1_000_000)
"""No delete is."""


def turns(*places: int) -> dict[SegmentName, int]:
    """Segments at these positions, compacted in this order."""
    return {SegmentName(place, 0): turn for turn, place in enumerate(places)}


ALL = turns(0, 1)


def history(text: str, *, expires: int = NO_EXPIRY, segments: str = "") -> list[IndexEntry]:
    """Records by their letters; `P(exp)` expires, `D3` has life version 3; versions follow by themselves otherwise."""
    entries: list[IndexEntry] = []
    version = 0
    permanent = False
    for number, word in enumerate(text.split()):
        kind = KINDS[word[0]]
        if kind == RecordKind.UNDELETE:
            version += 1
        if word[1:].isdigit():
            version = int(word[1:])
        permanent = kind != RecordKind.PUT and (permanent or kind == RecordKind.TTL_UPDATE)
        segment = SegmentName(int(segments[number]), 0) if segments else SegmentName(0, 0)
        entries.append(IndexEntry(b"k", kind, RecordFlag.TTL_UPDATED if permanent else 0, version, number + 1,
                                  1000 * (number + 1), NO_EXPIRY if permanent else expires, 0, 0, segment,
                                  100 * (number + 1), 53))
    return entries


def kept(entries: list[IndexEntry], rules: Rules, compacting: Mapping[SegmentName, int] = ALL) -> str:
    """The letters of what is kept, with their places."""
    verdicts = judge(entries, rules, compacting)
    assert verdicts == [judge_one(entry, entries, rules, compacting) for entry in entries]
    return " ".join(f"{RecordKind(entry.kind).name[0]}{entry.sequence}"
                    for entry, verdict in zip(entries, verdicts, strict=True) if verdict is Verdict.KEEP)


GONE = 500_000
"""An expiry that has passed."""


@pytest.mark.parametrize(("text", "expires", "rules", "expected"), [
    ("P D U", NO_EXPIRY, LATER, "P1 U3"),
    ("P D U", GONE, LATER, ""),
    ("P D U D U", NO_EXPIRY, LATER, "P1 U5"),
    ("P D D3 U", NO_EXPIRY, LATER, "P1 U4"),
    ("P D D1", NO_EXPIRY, LATER, "D3"),
    ("P2", NO_EXPIRY, LATER, "P1"),
    ("P U", NO_EXPIRY, LATER, "P1 U2"),
    ("P U", GONE, LATER, ""),
    ("P T D U", NO_EXPIRY, LATER, "P1 T2 U4"),
    ("P T", GONE, LATER, "P1 T2"),
    ("T", NO_EXPIRY, LATER, ""),
    ("P D D1", NO_EXPIRY, NEVER, "P1 D3"),
    ("P U U D", NO_EXPIRY, NEVER, "P1 D4"),
    ("D", NO_EXPIRY, LATER, "D1"),
    ("U", NO_EXPIRY, LATER, "U1"),
    ("T U", NO_EXPIRY, LATER, "T1 U2"),
    ("T D", NO_EXPIRY, LATER, "D2"),
    ("D U", NO_EXPIRY, LATER, "U2"),
    ("U D", NO_EXPIRY, LATER, "D2"),
    ("T D U", NO_EXPIRY, LATER, "T1 U3"),
    ("D U T", NO_EXPIRY, LATER, "U2 T3"),
    ("P D", GONE, NEVER, "D2"),
    ("P D U D", NO_EXPIRY, LATER, "D4"),
    ("P D U D", NO_EXPIRY, NEVER, "P1 D4"),
    ("P T D", NO_EXPIRY, NEVER, "P1 T2 D3"),
])
def test_records_of_one_segment(text: str, expires: int, rules: Rules, expected: str) -> None:
    assert kept(history(text, expires=expires), rules) == expected


def test_only_the_first_segment_is_compacted() -> None:
    entries = history("P D U D", segments="0011")
    verdicts = judge(entries, LATER, turns(0))
    assert [verdict.name for verdict in verdicts[:2]] == ["DELETED", "SUPERSEDED"]


@pytest.mark.parametrize(("now", "expected"), [(4_999, "P1"), (5_000, "P1"), (5_001, "")])
def test_expiry_is_strict_to_the_millisecond(now: int, expected: str) -> None:
    assert kept(history("P", expires=5_000), Rules(reference_ms=0, now_ms=now)) == expected


@pytest.mark.parametrize(("reference", "expected"), [(1_999, "P1 D2"), (2_000, "P1 D2"), (2_001, "D2")])
def test_the_cut_off_is_strict_to_the_millisecond(reference: int, expected: str) -> None:
    assert kept(history("P D"), Rules(reference_ms=reference, now_ms=3_000)) == expected


@pytest.mark.parametrize(("compacting", "expected"), [({1}, True), ({0, 1}, False)])
def test_a_ttl_update_whose_put_stays(compacting: set[int], expected: bool) -> None:
    entries = history("P T D", segments="011")
    verdicts = judge(entries, LATER, turns(*sorted(compacting)))
    assert (verdicts[1] is Verdict.KEEP) == expected


def purging(peers: Callable[[IndexEntry], bool], *, purge: bool = True, had_put: bool = False) -> Rules:
    return Rules(reference_ms=1_000_000, now_ms=1_000_000, purge=PurgeRules(
        purge_tombstones=purge, seen_by_all_peers=peers, had_put=lambda entry: had_put))


@pytest.mark.parametrize(("case", "text", "expires", "rules", "expected"), [
    ("not every peer has seen it", "D", NO_EXPIRY, purging(lambda entry: False), "D1"),
    ("all peers have seen it", "D", NO_EXPIRY, purging(lambda entry: True), ""),
    ("its blob has expired", "D", GONE, purging(lambda entry: False), ""),
    ("its blob has not expired", "D", 2_000_000, purging(lambda entry: False), "D1"),
    ("purging is switched off", "D", GONE, purging(lambda entry: True, purge=False), "D1"),
    ("its PUT goes in the same cycle", "P D", NO_EXPIRY, purging(lambda entry: True), "D2"),
    ("its PUT went in an earlier cycle", "D", NO_EXPIRY, purging(lambda entry: True, had_put=True), "D1"),
    ("a tombstone among other records", "T D", NO_EXPIRY, purging(lambda entry: True), ""),
])
def test_tombstones(case: str, text: str, expires: int, rules: Rules, expected: str) -> None:
    assert kept(history(text, expires=expires), rules) == expected, case


@pytest.mark.parametrize(("text", "expires", "segments", "rules", "expected"), [
    ("P P", NO_EXPIRY, "", LATER, "P2"),
    ("P T P", NO_EXPIRY, "", LATER, "P3"),
    ("P P T", NO_EXPIRY, "", LATER, "P2 T3"),
    ("P D P1", NO_EXPIRY, "", LATER, "P3"),
    ("P P D", NO_EXPIRY, "", LATER, "D3"),
    ("P P", GONE, "", LATER, ""),
    # What a PUT has replaced lies in the other segment, which is not compacted, or not in this cycle.
    ("P P", GONE, "01", LATER, "P2"),
    ("P P D", NO_EXPIRY, "010", LATER, "P2"),
    ("P P D U", GONE, "0111", LATER, "P2 U4"),
])
def test_of_two_puts_of_one_blob_the_later_counts(text: str, expires: int, segments: str, rules: Rules,
                                                  expected: str) -> None:
    compacting = turns(1) if segments else ALL
    entries = history(text, expires=expires, segments=segments)
    verdicts = judge(entries, rules, compacting)
    assert " ".join(f"{RecordKind(entry.kind).name[0]}{entry.sequence}" for entry, verdict in zip(
        entries, verdicts, strict=True) if verdict is Verdict.KEEP and entry.segment in compacting) == expected
    assert verdicts[0] is Verdict.REPLACED or entries[0].segment not in compacting


def test_the_same_record_in_two_segments_counts_once_in_the_first() -> None:
    first = history("P")[0]
    second = first._replace(segment=SegmentName(1, 0), offset=700)
    assert judge([second, first], LATER, ALL) == [Verdict.DUPLICATE, Verdict.KEEP]


def test_two_records_of_one_sequence_that_differ_are_damage() -> None:
    first = history("P")[0]
    with pytest.raises(CorruptData, match="one sequence"):
        judge([first, first._replace(segment=SegmentName(1, 0), size=99)], LATER, ALL)


def test_a_copy_that_a_hard_delete_has_not_reached_is_still_a_copy() -> None:
    first = history("P")[0]
    second = first._replace(segment=SegmentName(1, 0), flags=int(RecordFlag.ERASED))
    assert judge([first, second], LATER, ALL) == [Verdict.KEEP, Verdict.DUPLICATE]
    assert judge_one(second, [first, second], LATER, ALL) is Verdict.DUPLICATE


def by_the_table(entries: list[IndexEntry], rules: Rules, compacting: Mapping[SegmentName, int]) -> list[bool]:
    """Ambry's table of verdicts, cell by cell."""
    newest = max((entry for entry in entries if entry.kind != RecordKind.TTL_UPDATE),
                 key=lambda entry: entry.sequence, default=None)
    has_ttl = any(entry.kind == RecordKind.TTL_UPDATE for entry in entries)
    puts = [entry for entry in entries if entry.kind == RecordKind.PUT]
    answer = []
    for entry in entries:
        if newest is None:
            answer.append(False)
            continue
        alive = has_ttl or newest.expires_ms < 0 or rules.now_ms <= newest.expires_ms
        counts = newest.op_time_ms < rules.reference_ms
        kinds = entry.kind, newest.kind
        if entry.kind == RecordKind.PUT:
            answer.append(alive and not (newest.kind == RecordKind.DELETE and counts))
        elif entry.kind == RecordKind.TTL_UPDATE:
            answer.append(newest.kind != RecordKind.DELETE or not counts
                          or any(put.segment not in compacting for put in puts))
        elif kinds == (RecordKind.DELETE, RecordKind.DELETE):
            answer.append(entry is newest)
        elif kinds == (RecordKind.UNDELETE, RecordKind.UNDELETE):
            older_stays = any(other.sequence < entry.sequence and other.segment not in compacting for other in entries)
            answer.append(entry is newest and (alive or older_stays))
        else:
            answer.append(False)
    return answer


@given(st.booleans(), st.lists(st.sampled_from("DTU"), max_size=6), st.sampled_from([NO_EXPIRY, 2_000, 50_000]),
       st.integers(0, 9_000), st.integers(0, 60_000), st.sets(st.integers(0, 1)), st.data())
def test_the_rules_are_those_of_the_table(has_put: bool, letters: list[str], expires: int, reference: int, now: int,
                                          compacting: set[int], data: st.DataObject) -> None:
    text = " ".join([*(["P"] if has_put else []), *letters])
    if not text:
        return
    places = "".join(sorted(data.draw(st.sampled_from("01")) for _ in text.split()))
    entries = history(text, expires=expires, segments=places)
    rules = Rules(reference_ms=reference, now_ms=now)
    chosen = turns(*sorted(compacting))
    assert [verdict is Verdict.KEEP for verdict in judge(entries, rules, chosen)] == by_the_table(
        entries, rules, chosen)


@given(st.lists(st.sampled_from("DTU"), min_size=1, max_size=5))
def test_the_order_of_the_history_does_not_matter(letters: list[str]) -> None:
    entries = history(" ".join(["P", *letters]))
    verdicts = dict(zip(entries, judge(entries, LATER, ALL), strict=True))
    shuffled = list(reversed(entries))
    assert dict(zip(shuffled, judge(shuffled, LATER, ALL), strict=True)) == verdicts


# --------------------------------------------------------------------------------- no older state comes back

def test_a_tombstone_waits_for_the_older_records_that_stay() -> None:
    entries = history("D U D", segments="011")
    rules = purging(lambda entry: True)
    assert kept(entries, rules, turns(1)) == "D3"
    assert kept(entries, rules, ALL) == ""
    # In one compaction, the newest one's segment may go in a cycle before that of the older ones.
    assert kept(history("D U D", segments="110"), rules, ALL) == "D3"
    # A TTL update came later, from a peer that did not know of the delete.
    late = history("D T", segments="01")
    assert kept(late, rules, turns(0)) == kept(late, rules, ALL) == "D1"
    assert kept(history("D T", segments="10"), rules, ALL) == ""


def test_an_expired_undelete_waits_for_the_older_records_that_stay() -> None:
    entries = history("P D U", expires=GONE, segments="001")
    assert judge(entries, LATER, turns(1))[2] is Verdict.KEEP
    assert kept(entries, LATER, ALL) == ""


def seen(entries: list[IndexEntry], now_ms: int) -> str:
    """What a reader, or a peer, is told of the blob."""
    state = blob_state(sorted(entries, key=lambda entry: entry.sequence))
    if state is None or state.deciding is None:
        return "missing" if not entries else "leftovers"
    if state.is_deleted:
        return f"deleted, life {state.newest.life_version}"
    if state.put is None:
        return "missing"
    if state.is_expired(now_ms):
        return "expired"
    return f"there, PUT {state.put.sequence}, life {state.newest.life_version}, until {state.newest.expires_ms}"


@st.composite
def lives_of_a_blob(draw: st.DrawFn) -> tuple[list[IndexEntry], dict[SegmentName, int], int]:
    """A blob's records as a store writes them, in any segments; which are compacted, and how far the cycles come."""
    words = ["P"]
    deleted = permanent = False
    life = 0
    for _ in range(draw(st.integers(0, 5))):
        choices = ["U", "P"] if deleted else ["D", "P"] if permanent else ["D", "T", "P"]
        word = draw(st.sampled_from(choices))
        life += deleted
        deleted, permanent = word == "D", word != "P" and (permanent or word == "T")
        words.append(f"P{life}" if word == "P" else word)
    segments = "".join(draw(st.lists(st.sampled_from("0123"), min_size=len(words), max_size=len(words))))
    entries = history(" ".join(words), expires=draw(st.sampled_from([NO_EXPIRY, 2_000, 50_000])), segments=segments)
    chosen = turns(*draw(st.lists(st.integers(0, 3), min_size=1, unique=True)))
    return entries, chosen, draw(st.integers(0, 3))


@given(lives_of_a_blob(), st.sampled_from([0, 3_500, 60_000]), st.integers(0, 60_000), st.booleans())
def test_no_compaction_brings_an_older_state_back(
        lived: tuple[list[IndexEntry], dict[SegmentName, int], int], reference: int, now: int, purge: bool) -> None:
    """However the records are spread, whichever segments are compacted, in which order, and after whichever cycle it is
    dropped. Twice, since a first compaction may leave what is then misread."""
    entries, compacting, last = lived
    rules = Rules(reference_ms=reference, now_ms=now, purge=PurgeRules(
        purge_tombstones=purge, seen_by_all_peers=lambda entry: purge))
    before = seen(entries, now)
    for chosen, until in ((compacting, last), (compacting, 3), (turns(2), 3)):
        if not entries:
            break
        verdicts = judge(entries, rules, chosen)
        entries = [entry for entry, verdict in zip(entries, verdicts, strict=True)
                   if verdict is Verdict.KEEP or chosen.get(entry.segment, 4) > until]
        after = seen(entries, now)
        dropped = {"missing", "leftovers"} if before in ("expired", "leftovers") else {
            "missing"} if purge and before.startswith("deleted") else set()
        assert after == before or after in dropped, (before, after)
        before = after
