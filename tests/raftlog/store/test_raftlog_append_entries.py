# SPDX-License-Identifier: Apache-2.0
"""Messages of a leader: Raft's rule (section 5.3 of the paper), also for repeated, late and disordered messages."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from compactlib.errors import InvalidInput
from compactlib.raftlog import DeadEntry, Entry, RaftLog, StoreOptions, open_log, raft_log
from compactlib.raftlog.errors import Overwriting
from compactlib.raftlog.values import AppendAnswer, AppendEntries
from compactlib.testing import RecordingFiles, explore_crashes, record
from tests.harness.effort import Effort
from tests.harness.raft_world import store_options
from tests.raftlog.raft_host import SMALL, indexes, reopened, rows
from tests.raftlog.wrapped_files import UnsyncedFiles


@pytest.fixture
def log(tmp_path: Path) -> Iterator[RaftLog]:
    with open_log(tmp_path / "store", SMALL) as opened:
        yield opened


def terms(log: RaftLog) -> list[tuple[int, int]]:
    return [(entry.index, entry.term) for entry in log.entries()]


def test_a_repeated_message_truncates_nothing(log: RaftLog) -> None:
    """An obvious handler that gives it to `append` is refused by name: it took back synced entries."""
    assert log.append_entries(0, 0, rows(1, 10)) == AppendAnswer(True, 10, 11)
    assert log.append_entries(2, 1, rows(3, 4)) == AppendAnswer(True, 4, 5)
    assert indexes(log) == list(range(1, 11))
    for again in (rows(3, 4), rows(1, 30), [(10, 2, b"x")]):
        with pytest.raises(Overwriting, match=r"append_entries\(\)"):
            log.append(again)
    with pytest.raises(Overwriting):
        log.append_run(10, 2, [b"x"])
    assert indexes(log) == list(range(1, 11))
    assert not log.unconfirmed


def test_only_another_term_takes_entries_back(log: RaftLog) -> None:
    log.append_entries(0, 0, [*rows(1, 4), *rows(5, 9, 2)])
    assert log.append_entries(3, 1, [*rows(4, 4), *rows(5, 6, 3)]) == AppendAnswer(True, 6, 7)
    assert terms(log) == [*((index, 1) for index in range(1, 5)), (5, 3), (6, 3)]
    assert log.append_entries(5, 3, rows(6, 8, 3)) == AppendAnswer(True, 8, 9)
    assert log.append_entries(8, 3) == AppendAnswer(True, 8, 9)
    assert log.last_index == 8


def test_a_refusal_names_the_next_index(log: RaftLog) -> None:
    assert log.append_entries(7, 2, rows(8, 8, 2)) == AppendAnswer(False, -1, 0)
    log.append_entries(0, 0, [*rows(1, 10), *rows(11, 30, 2), *rows(31, 60, 4)])
    assert log.append_entries(90, 5, rows(91, 91, 5)) == AppendAnswer(False, -1, 61)
    assert log.append_entries(60, 5, rows(61, 61, 5)) == AppendAnswer(False, -1, 31, 4)
    assert log.append_entries(30, 3, rows(31, 31, 5)) == AppendAnswer(False, -1, 11, 2)
    assert log.append_entries(10, 1, rows(11, 11, 5)) == AppendAnswer(True, 11, 12)
    assert log.last_index == 11


@pytest.mark.parametrize("flushed", [False, True])
def test_entries_covered_by_a_snapshot_count_as_the_leaders(flushed: bool, log: RaftLog) -> None:
    log.append_entries(0, 0, rows(1, 20, 3))
    log.snapshot(15, [7])
    if flushed:
        log.flush()
    assert log.append_entries(2, 1, rows(3, 5, 2)) == AppendAnswer(True, 15, 16)
    assert log.append_entries(10, 9, rows(11, 17, 3)) == AppendAnswer(True, 17, 18)
    assert log.append_entries(15, 3, rows(16, 16, 4)) == AppendAnswer(True, 16, 17)
    # Of a leader that was deposed before the snapshot's last entry was committed.
    before = terms(log)
    assert log.append_entries(15, 2, rows(16, 18, 2)) == AppendAnswer(False, -1, 15, 3)
    assert log.append_entries(12, 2, rows(13, 18, 2)) == AppendAnswer(False, -1, 15, 3)
    assert log.append_entries(16, 2, rows(17, 18, 2)) == AppendAnswer(False, -1, 16, 4)
    assert terms(log) == before == [(7, 3), (16, 4)]


def test_a_log_that_begins_in_the_middle_names_the_index_it_needs(tmp_path: Path) -> None:
    with open_log(tmp_path / "zero", SMALL) as log:
        assert log.append_entries(-1, 0, rows(0, 3)) == AppendAnswer(True, 3, 4)
        with pytest.raises(InvalidInput, match="the first entry is 5, and follows 3"):
            log.append_entries(3, 1, rows(5, 6))
        with pytest.raises(InvalidInput, match="index 7 follows 5 in one call"):
            log.append_entries(3, 1, [(4, 1, b""), (5, 1, b""), (7, 1, b"")])
        with pytest.raises(InvalidInput, match="the previous index is -2; it is 0, or -1, if nothing comes before"):
            log.append_entries(-2, 0)
        assert log.append_entries(0, 0, rows(1, 1)) == AppendAnswer(False, -1, 0, 1)
        assert indexes(log) == [0, 1, 2, 3]
    with open_log(tmp_path / "one", SMALL) as log:
        log.append_entries(0, 0, rows(1, 3))
        for prev_index, prev_term in ((-1, 0), (0, 1)):
            with pytest.raises(InvalidInput, match="begins at 1"):
                log.append_entries(prev_index, prev_term, rows(prev_index + 1, 3))
        assert indexes(log) == [1, 2, 3]
    with open_log(tmp_path / "middle", SMALL) as log:
        log.append(rows(50, 60))
        for prev_index in (0, 48, 49):
            with pytest.raises(InvalidInput, match=r"begins at 50 .* have the leader send its snapshot"):
                log.append_entries(prev_index, 0, rows(prev_index + 1, 70))
        assert log.append_entries(50, 1, rows(51, 61)) == AppendAnswer(True, 61, 62)


def test_an_answer_is_durable_and_a_large_message_is_taken_in_parts(tmp_path: Path,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raft_log, "MAX_APPEND_ENTRIES", 8)
    log = open_log(tmp_path / "store", SMALL)
    assert log.append_entries(0, 0, rows(1, 50)).match_index == 50
    assert log.append_entries(20, 1, [*rows(21, 45), *rows(46, 80, 2)]).match_index == 80
    assert not log.unconfirmed
    log.append(rows(81, 82, 2))
    assert log.append_entries(0, 0, rows(1, 3)).success
    assert not log.unconfirmed
    log = reopened(log)
    assert terms(log) == [(index, 1 if index < 46 else 2) for index in range(1, 83)]
    log.close()


# -- messages of a leader


def test_entries_after_an_index_are_the_message_to_send(tmp_path: Path) -> None:
    with open_log(tmp_path / "leader", SMALL) as leader, open_log(tmp_path / "follower", SMALL) as follower:
        assert leader.entries_after(-1) == leader.entries_after(0) == leader.entries_after(9) == AppendEntries(0, 0, ())
        leader.append([*rows(1, 30), *rows(31, 40, 2)])
        assert leader.entries_after(40) == leader.entries_after(99) == AppendEntries(40, 2, ())
        follower.append_entries(0, 0, rows(1, 35, 1))
        follower_next, messages = 36, 0
        while follower_next <= 40:
            message = leader.entries_after(follower_next - 1, max_bytes=10)
            assert message is not None
            follower_next, messages = follower.append_entries(*message).next_index, messages + 1
        assert list(follower.entries()) == list(leader.entries())
        assert messages < 12
        first = leader.entries_after(0, max_bytes=0)
        assert first == AppendEntries(0, 0, (Entry(1, 1, b"1"),))


def test_a_leader_resumes_after_its_last_entry_of_the_conflict_term(tmp_path: Path) -> None:
    """The first index of a long term may be one that the leader has no more, though the logs differ at the end only."""
    with open_log(tmp_path / "leader", attrs.evolve(SMALL, keep_trailing=5)) as leader, \
            open_log(tmp_path / "follower", SMALL) as follower:
        leader.append([*rows(1, 40, 2), *rows(41, 50, 4)])
        leader.snapshot(38, ())
        follower.append_entries(0, 0, rows(1, 46, 2))
        refused = follower.append_entries(45, 4, rows(46, 50, 4))
        assert refused == AppendAnswer(False, -1, 1, 2)
        assert leader.next_index(refused) == 41
        message = leader.entries_after(40)
        assert message is not None
        assert follower.append_entries(*message) == AppendAnswer(True, 50, 51)
        # Of a term that it has not, or not any more; and an accepted message.
        assert leader.next_index(AppendAnswer(False, -1, 36, 3)) == 36
        assert leader.next_index(AppendAnswer(False, -1, 20, 1)) == 20
        assert leader.next_index(AppendAnswer(False, -1, 60)) == 60
        assert leader.next_index(AppendAnswer(False, -1, 45, 4)) == 51
        assert leader.next_index(AppendAnswer(True, 50, 51)) == 51


def test_a_follower_behind_the_snapshot_needs_it(log: RaftLog) -> None:
    log.append(rows(1, 40))
    log.snapshot(30, [7, 29])
    assert log.entries_after(6) is log.entries_after(7) is log.entries_after(28) is log.entries_after(29) is None
    assert log.entries_after(30) == AppendEntries(30, 1, tuple(log.entries(31)))
    assert [log.term_of(index) for index in (6, 7, 28, 29, 30, 31, 41)] == [None, 1, None, 1, 1, 1, None]


def test_trailing_entries_stay_for_followers_slightly_behind(tmp_path: Path) -> None:
    options = attrs.evolve(SMALL, keep_trailing=6)
    log = open_log(tmp_path / "store", options)
    log.append([*rows(1, 27), *rows(28, 40, 2)])
    log.snapshot(30, [7])
    for again in (False, True):
        if again:
            log.flush()
            log.compact(policy=log.policy)
            log = reopened(log)
        assert indexes(log) == [7, *range(25, 41)]
        assert [log.term_of(index) for index in (7, 24, 25, 27, 28, 30, 31)] == [1, None, 1, 1, 2, 2, 2]
        assert log.entries_after(24) is log.entries_after(7) is None
        assert log.entries_after(25) == AppendEntries(25, 1, tuple(log.entries(26)))
        assert log.entries_after(30) == AppendEntries(30, 2, tuple(log.entries(31)))
        assert log.read(24) == DeadEntry(24, 30)
    log.close()
    log = open_log(tmp_path / "store", options)
    # A dead entry does not return: neither in the next snapshot, nor under other settings.
    log.snapshot(32, [7])
    assert indexes(log) == [7, *range(27, 41)]
    log.close()
    log = open_log(tmp_path / "store", attrs.evolve(options, keep_trailing=100))
    log.snapshot(35, [7])
    assert indexes(log) == [7, *range(27, 41)]
    log.audit()
    assert log.verify().is_sound
    log.close()


def test_a_checkpoint_made_the_snapshot_keeps_trailing_entries(tmp_path: Path) -> None:
    with open_log(tmp_path / "store", attrs.evolve(SMALL, keep_trailing=3)) as log:
        log.append(rows(1, 20))
        log.checkpoint(12, [4], [b"state"])
        assert indexes(log) == list(range(1, 21))
        assert log.promote(12) is log.state
        assert (log.state.index, list(log.state.live)) == (12, [4, 10, 11, 12])
    with pytest.raises(InvalidInput, match="keep_trailing is -1"):
        StoreOptions(keep_trailing=-1)


# -- against a plain model of the rule


@attrs.define
class Paper:
    """A follower's log as in the paper, from 1 on, and its commit index."""

    terms: list[int] = attrs.field(factory=list)
    snapshot: int = 0

    def take(self, prev_index: int, prev_term: int, sent: Sequence[int]) -> bool:
        """Rules 2 to 4 of the paper's AppendEntries, with entries covered by the snapshot as matching."""
        if prev_index > self.snapshot and (prev_index > len(self.terms) or self.terms[prev_index - 1] != prev_term):
            return False
        for index, term in enumerate(sent, prev_index + 1):
            if index <= self.snapshot:
                continue
            if index <= len(self.terms) and self.terms[index - 1] != term:
                del self.terms[index - 1:]
            if index > len(self.terms):
                self.terms.append(term)
        return True


def leaders(rng: random.Random) -> list[list[int]]:
    """Logs of leaders one after another, as terms: each keeps the committed entries of its predecessor, and appends."""
    found = [[1] * rng.randrange(1, 9)]
    for term in range(2, rng.randrange(3, 7)):
        kept = rng.randrange(len(found[-1]) + 1)
        found.append(found[-1][:kept] + [term] * rng.randrange(1, 7))
    return found


def payload(index: int, term: int) -> bytes:
    return b"%d in %d" % (index, term)


def message_of(log: Sequence[int], first: int, last: int) -> tuple[int, int, list[tuple[int, int, bytes]]]:
    """Return a leader's message from one index to another."""
    return (first - 1, log[first - 2] if first > 1 else 0,
            [(index, log[index - 1], payload(index, log[index - 1])) for index in range(first, last + 1)])


def require_same(log: RaftLog, model: Paper) -> None:
    assert terms(log) == [(index, term) for index, term in enumerate(model.terms, 1)
                          if index > model.snapshot or index in log.state.live]
    assert all(entry.payload == payload(entry.index, entry.term) for entry in log.entries())


def live_under(folder: Path, seed: int) -> None:
    """Leaders come one after another; each one's messages come in any order, and again; each brings its log across."""
    rng = random.Random(seed)
    options = attrs.evolve(store_options(UnsyncedFiles()), keep_trailing=rng.choice((0, 0, 3)))
    model = Paper()
    with open_log(folder, options) as log:
        for leader in leaders(rng):
            common = 0
            while common < min(len(leader), len(model.terms)) and leader[common] == model.terms[common]:
                common += 1
            if model.snapshot > common:
                # No such leader is elected: it lacks committed entries.
                continue
            sent = []
            for _ in range(rng.randrange(1, 9)):
                first = rng.randrange(1, len(leader) + 1)
                sent.append(message_of(leader, first, rng.randrange(first - 1, len(leader) + 1)))
            sent += rng.choices(sent, k=3)
            for message in sent:
                prev_index, prev_term, entries = message
                before, held = len(model.terms), list(model.terms)
                answer = log.append_entries(*message)
                assert answer.success == model.take(prev_index, prev_term, [term for _, term, _ in entries])
                require_same(log, model)
                if answer.success:
                    assert answer.match_index == max(prev_index + len(entries), model.snapshot if log.state.live or
                                                     log.state.index >= 0 else 0)
                    assert model.terms[:answer.match_index] == leader[:answer.match_index]
                elif answer.conflict_term is None:
                    assert answer.next_index == (before + 1 if before else 0) <= prev_index
                else:
                    assert held[prev_index - 1] == held[answer.next_index - 1] == answer.conflict_term
                    assert (answer.next_index == model.snapshot + 1
                            or held[answer.next_index - 2] != answer.conflict_term)
                if answer.success and rng.random() < 0.2 and answer.match_index > model.snapshot:
                    # Committed, and applied.
                    model.snapshot = answer.match_index
                    log.snapshot(model.snapshot, [index for index in indexes(log)
                                                  if index <= model.snapshot and rng.random() < 0.4])
                if rng.random() < 0.2:
                    log.flush()
                    log.compact(policy=log.policy)
            # As a leader brings a follower up to date: from the end, back where it is refused.
            next_index, rounds, terms_held = len(leader) + 1, 0, len(set(model.terms))
            while True:
                message = message_of(leader, next_index, len(leader))
                answer = log.append_entries(*message)
                model.take(message[0], message[1], [term for _, term, _ in message[2]])
                rounds += 1
                if answer.success:
                    break
                assert answer.next_index < next_index
                next_index = max(answer.next_index, 1)
            # Each refusal passes over a whole term, or comes down to the end of the log.
            assert rounds <= 2 + terms_held
            assert model.terms == leader
            require_same(log, model)
            log.audit()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_any_deliveries_of_any_leaders_follow_the_paper(tmp_path_factory: pytest.TempPathFactory,
                                                        seed: int) -> None:
    live_under(tmp_path_factory.mktemp("log") / "store", seed)


@pytest.mark.soak
@pytest.mark.parametrize("start", range(0, 4000, 500))
def test_soak_deliveries(start: int, tmp_path: Path) -> None:
    for seed in range(start, start + 500):
        live_under(tmp_path / str(seed), seed)


# -- crashes


def test_a_crash_at_every_step_keeps_answered_entries(tmp_path: Path, effort: Effort) -> None:
    """Each answer's entries are there after any crash from then on, until another leader's take their place."""
    leader, other = [1, 1, 1, 2, 2, 2, 2], [1, 1, 1, 2, 3, 3]
    messages = [message_of(leader, 1, 3), message_of(leader, 4, 7), message_of(leader, 2, 5), message_of(other, 4, 6),
                message_of(leader, 2, 3), message_of(other, 7, 6)]
    states: list[list[int]] = [[]]
    for message in messages:
        model = Paper(list(states[-1]))
        assert model.take(message[0], message[1], [term for _, term, _ in message[2]])
        states.append(model.terms)

    def run(inside: Path, files: RecordingFiles) -> None:
        with open_log(inside / "store", store_options(files, max_wal_bytes=150)) as log:
            for place, message in enumerate(messages, 1):
                assert log.append_entries(*message).success
                files.acknowledge(place)
                if place == 3:
                    log.flush()

    def check(found: Path, acknowledged: Sequence[object]) -> None:
        if not (found / "store").exists():
            assert not acknowledged
            return
        promised = int(str(acknowledged[-1])) if acknowledged else 0
        with open_log(found / "store", store_options()) as log:
            assert [term for _, term in terms(log)] in states[promised:]
            log.audit()
            assert log.append_entries(*message_of(other, 1, 6)).match_index == 6
            assert [term for _, term in terms(log)] == other

    explore_crashes(record(tmp_path, run), check, seed=1, limit_per_point=effort(3, 40))
