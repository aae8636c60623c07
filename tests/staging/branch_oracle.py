# SPDX-License-Identifier: Apache-2.0
"""The oracle for one run of a `branch_world`: what G1 to G6 allow.

Every operation says in the history what it may have written and what it read. Then: reads are those of a regular
register (G1, G4, G5); what a commit left as HEAD is a read of all keys (G2); compactions and cleanups write nothing
(G3); resets write what HEAD held while they ran, and HEAD is what the branch record named then (G6); at the end every
way to read agrees, and one more commit commits exactly that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compactlib.outcome import Done, Failed
from compactlib.staging import RecordNotFound
from compactlib.staging.commit import CommitRequest, commit
from compactlib.staging.errors import BeingCollected
from compactlib.staging.listing import ListRequest
from compactlib.staging.reads import diff_uncommitted, get, list_branch
from compactlib.staging.results import NoChanges
from tests.staging.branch_world import DIRTY, KEYS, MAIN, Contents, K, World, cache_of
from tests.tools.interleave.history import ABSENT, HistoryOperation


def check(world: World, results: Mapping[str, Any]) -> None:
    """G1 to G6 of one run."""
    history = world.history
    collecting = any(each.name == "collect" for each in history.operations)
    for name, result in results.items():
        # Who wants a file again that is being deleted gives way, if that takes longer than the tries.
        assert result is None or (collecting and isinstance(result, BeingCollected)), (
            f"{name} ended in {type(result).__name__}: {result}; {history}")
    for each in history.operations:
        error = each.result.error if isinstance(each.result, Failed) else None
        assert error is None or (collecting and isinstance(error, BeingCollected)), f"{each}: {each.result}"
        _resolve(world, each)
    history.check_reads()  # G1, and G3 for what compactions did meanwhile
    for each in history.operations:
        _check_operation(world, each)
    _check_end(world)


def _resolve(world: World, each: HistoryOperation) -> None:
    """What a reset wrote: whatever HEAD held while it ran. What a merge wrote: what differs from HEAD before it."""
    if each.name == "merge" and isinstance(each.result, Done | NoChanges):
        each.writes.clear()
        if isinstance(each.result, Done):
            commit_id = each.result.stats.commit_id
            now = world.contents_of(commit_id)
            before = world.contents_of(next(iter(world.behind.commits.get(commit_id).parents), None))
            for key in KEYS:
                if before.get(key) != now.get(key):
                    each.write(key, now.get(key, ABSENT))
    for key, values in each.writes.items():
        if not values:
            each.writes[key] = frozenset(head.get(key, ABSENT) for head in world.heads(each.begin, each.last))


def _check_operation(world: World, each: HistoryOperation) -> None:
    history = world.history
    allowed = {key: history.allowed(key, each.begin, each.last, without=each) for key in KEYS}
    if isinstance(each.result, Exception):
        return
    if each.name == "commit":
        # G2: what is committed at the end is a state that a read of this time could have returned.
        assert any(all(head.get(key, ABSENT) in allowed[key] for key in KEYS)
                   for head in world.heads(each.begin, each.last)), f"{each} left out a write: {history}"
    elif each.result == "refused":
        assert allowed[K] - {ABSENT}, f"{each} was refused although nothing was there: {history}"
    elif each.result == "written":
        assert ABSENT in allowed[K], f"{each} wrote although something was there: {history}"
        removers = {"delete", "reset", "reset_key", "reset_prefix", "hard_reset"}
        winners = [other for other in history.operations if other.result == "written"]
        assert len(winners) == 1 or any(other.name in removers for other in history.operations), f"two won: {history}"
    elif each.result == "missing":
        assert ABSENT in allowed[K], f"{each} found nothing although something was there: {history}"
    elif each.result == "dirty":
        quiet = {"merge", "commit", "compact", "compact_keeping", "cleanup", "get", "list", "diff"}
        others = {other.name for other in history.operations}
        assert world.setup in DIRTY or not others <= quiet, f"{each} on a clean branch: {history}"
    elif each.name == "diff":
        _check_diff(world, each, allowed)


def _check_diff(world: World, each: HistoryOperation, allowed: Mapping[bytes, frozenset[Any]]) -> None:
    heads = world.heads(each.begin, each.last)
    for key in KEYS:
        left_right = each.result.get(key)
        possible = [(head.get(key, ABSENT), value) for head in heads for value in allowed[key]]
        if left_right is None:
            assert any(left == right for left, right in possible), f"{each} says nothing of {key!r}: {world.history}"
        else:
            told = tuple(ABSENT if side is None else side for side in left_right)
            assert told in possible, f"{each} says {told} of {key!r}: {world.history}"
            assert told[0] != told[1], f"{each} says {told} of {key!r}: {world.history}"


# What stood at the end of runs whose state was checked: thousands of orders of steps end in a few states.
_ENDS: dict[int, Contents] = {}


def _check_end(world: World) -> None:
    """The state that is left is one that the history allows, and is right by itself."""
    state = world.state()
    held = _ENDS.get(state)
    if held is None:
        held = _ENDS[state] = _checked_state(world)
    world.history.check_final(held, KEYS)


def _checked_state(world: World) -> Contents:
    """What stands in the branch; it reads right, is committed right, and nothing that is marked is in use."""
    context, cache = world.behind, cache_of(world.behind)
    record = context.branches.read(MAIN).record
    record.audit()
    marked = {mark.token for mark in context.tokens.dropped()}
    assert not marked & set(record.tokens), f"tokens in use are marked: {marked & set(record.tokens)}"
    page = list_branch(context, MAIN, ListRequest(limit=100))
    held = {each.key: each.record.data for each in page.entries if each.record is not None}
    for key in KEYS:
        try:
            assert get(context, MAIN, key).data == held.get(key), f"get and list differ in {key!r}"
        except RecordNotFound:
            assert key not in held, f"get and list differ in {key!r}"
    head = world.contents_of(record.commit_id)
    differences = diff_uncommitted(context, MAIN, cache, prefix=b"", after=None, limit=100).differences
    expected = {key for key in {*head, *held} if head.get(key) != held.get(key)}
    assert {each.key for each in differences} == expected, f"diff {differences} instead of {expected}"
    commit(context, MAIN, CommitRequest(message="at the end"))
    after = context.branches.read(MAIN).record
    assert world.contents_of(after.commit_id) == held, f"committed {world.contents_of(after.commit_id)}, not {held}"
    assert (after.sealed_tokens, after.compacted_metarange_id) == ((), None), f"left over: {after}"
    return held
