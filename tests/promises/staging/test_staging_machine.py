# SPDX-License-Identifier: Apache-2.0
"""The whole branch API against plain dictionaries, with compactions and cleanups wherever they like (G3, C23).

The model knows nothing of tokens and compactions: a branch is two dictionaries, HEAD and the present. A
compaction, a cleanup or a seal between two calls must have no visible effect.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from compactlib.kv import EXISTS, KVStore, MemoryStore
from compactlib.staging import (
    Branch,
    DirtyBranch,
    MergeConflict,
    PreconditionFailed,
    Record,
    RecordNotFound,
    SplitRule,
)
from tests.harness.backends import BACKENDS
from tests.harness.staging_world import StagingWorld

Contents = dict[bytes, bytes]

keys = st.sampled_from([b"a", b"a/1", b"a/2", b"a/\xff", b"b", b"b/1", b"\x00", b"\xff", b"\xff\xff"])
values = st.sampled_from([b"", b"1", b"2", b"three"])
prefixes = st.sampled_from([b"", b"a", b"a/", b"\xff", b"nothing"])
names = st.sampled_from(["main", "dev", "dev/2"])


@attrs.define
class Model:
    """A branch: what HEAD has, what there is, and which commit HEAD is."""

    head: Contents
    now: Contents
    commit_id: str | None

    @property
    def is_dirty(self) -> bool:
        return self.head != self.now


@attrs.define
class ModelCommit:
    contents: Contents
    parents: tuple[str, ...]
    generation: int


NUMBERS = count()


def merged(base: Contents, source: Contents, destination: Contents, strategy: str) -> Contents | None:
    """`None` if there is a conflict."""
    result = dict(destination)
    for key in {*base, *source}:
        before, theirs, ours = base.get(key), source.get(key), destination.get(key)
        if theirs in (before, ours):
            continue
        if ours != before:
            if strategy == "fail":
                return None
            if strategy == "destination_wins":
                continue
        result.pop(key, None)
        if theirs is not None:
            result[key] = theirs
    return result


def differences(head: Contents, now: Contents) -> list[tuple[bytes, str, bytes | None, bytes | None]]:
    """Each key that differs, the kind of its difference, and both sides."""
    kinds = {(False, True): "added", (True, True): "changed", (True, False): "removed"}
    return [(key, kinds[key in head, key in now], head.get(key), now.get(key)) for key in sorted({*head, *now})
            if head.get(key) != now.get(key)]


def merge_bases(commits: dict[str, ModelCommit], ones: list[str], others: list[str]) -> list[str]:
    """The common ancestors that no other common ancestor has in its history."""
    def history(heads: list[str]) -> set[str]:
        found: set[str] = set()
        waiting = list(heads)
        while waiting:
            current = waiting.pop()
            if current not in found:
                found.add(current)
                waiting += commits[current].parents
        return found

    common = history(ones) & history(others)
    older = {each for commit_id in common for each in history([*commits[commit_id].parents])}
    return sorted(common - older, key=lambda each: (-commits[each].generation, each))


def base_contents(commits: dict[str, ModelCommit], ones: list[str], others: list[str]) -> Contents:
    """What two sets of commits have in common; a key that its newest common ancestors disagree about is unlike any."""
    bases = merge_bases(commits, ones, others)
    if not bases:
        return {}
    base = dict(commits[bases[0]].contents)
    for number, commit_id in enumerate(bases[1:], 1):
        before, other = base_contents(commits, bases[:number], [commit_id]), commits[commit_id].contents
        for key in {*base, *other, *before}:
            if other.get(key) in (base.get(key), before.get(key)):
                continue
            is_theirs = base.get(key) == before.get(key)
            base.pop(key, None)
            if not is_theirs:
                base[key] = b"unlike %d" % next(NUMBERS)
            elif key in other:
                base[key] = other[key]
    return base


class BranchMachine(RuleBasedStateMachine):
    """Branches over a store that `make_store` gives."""

    make_store: Callable[[], KVStore] = staticmethod(MemoryStore)

    def __init__(self) -> None:
        super().__init__()
        self.store = type(self).make_store()
        self.world = StagingWorld(self.store, rule=SplitRule(raggedness=3))
        self.models: dict[str, Model] = {}
        self.commits: dict[str, ModelCommit] = {}

    @initialize()
    def first_branch(self) -> None:
        self.world.repo.create_branch("main")
        self.models["main"] = Model({}, {}, None)

    def pick(self, name: str) -> tuple[Branch, Model]:
        if name not in self.models:
            name = min(self.models)
        return self.world.repo.branch(name), self.models[name]

    # --- branches

    @rule(name=names, source=names)
    def create(self, name: str, source: str) -> None:
        if name in self.models:
            return
        branch, model = self.pick(source)
        self.world.repo.create_branch(name, branch.name)
        self.models[name] = Model(dict(model.head), dict(model.head), model.commit_id)

    @rule(name=names)
    def delete_branch(self, name: str) -> None:
        if name in self.models and len(self.models) > 1:
            self.world.repo.delete_branch(name)
            del self.models[name]

    # --- writes

    @rule(name=names, items=st.dictionaries(keys, values, max_size=4))
    def put(self, name: str, items: Contents) -> None:
        branch, model = self.pick(name)
        if len(items) == 1:
            ((key, value),) = items.items()
            branch.put(key, value)
        else:
            branch.put_many(items)
        model.now |= items

    @rule(name=names, doomed=st.lists(keys, max_size=5))
    def delete(self, name: str, doomed: list[bytes]) -> None:
        branch, model = self.pick(name)
        branch.delete_many(doomed)
        for key in doomed:
            model.now.pop(key, None)

    @rule(name=names, key=keys, value=st.none() | values,
          expected=st.sampled_from(["present", "absent", "any"]) | values)
    def write_if(self, name: str, key: bytes, value: bytes | None, expected: str | bytes) -> None:
        branch, model = self.pick(name)
        present = model.now.get(key)
        holds = {"present": present is not None, "absent": present is None}.get(str(expected), present == expected)
        state: Any = {"present": EXISTS, "absent": None}.get(str(expected))
        if isinstance(expected, bytes):
            state = Record.of(expected)
        elif expected == "any":
            holds, state = True, None if present is None else EXISTS
        with contextlib.nullcontext() if holds else pytest.raises(PreconditionFailed):
            if value is None:
                branch.delete_if(key, state)
            else:
                branch.put_if(key, value, state)
        if holds:
            model.now.pop(key, None)
            if value is not None:
                model.now[key] = value

    @rule(name=names, key=keys, leave=st.booleans())
    def update(self, name: str, key: bytes, leave: bool) -> None:
        branch, model = self.pick(name)
        present = model.now.get(key)
        new = None if leave else (present or b"")[:3] + b"+"

        def change(record: Record | None) -> bytes | None:
            assert (None if record is None else record.data) == present
            return new

        branch.update(key, change)
        if new is not None:
            model.now[key] = new

    # --- reads

    @rule(name=names, key=keys)
    def get(self, name: str, key: bytes) -> None:
        branch, model = self.pick(name)
        for read, found in ((branch.get, model.now.get(key)), (branch.head().get, model.head.get(key))):
            if found is None:
                with pytest.raises(RecordNotFound):
                    read(key)
            else:
                assert read(key) == Record.of(found)
        assert {at: one.data for at, one in branch.get_many([key, b"a", b"b"]).items()} == {
            at: model.now[at] for at in (key, b"a", b"b") if at in model.now}

    @rule(name=names, prefix=prefixes, delimiter=st.sampled_from([b"", b"/", b"a"]), limit=st.integers(1, 4),
          of_head=st.booleans())
    def list(self, name: str, prefix: bytes, delimiter: bytes, limit: int, of_head: bool) -> None:
        branch, model = self.pick(name)
        contents = model.head if of_head else model.now
        expected: dict[bytes, bytes | None] = {}
        for key in sorted(contents):
            if key.startswith(prefix):
                at = key.find(delimiter, len(prefix)) if delimiter else -1
                if at < 0:
                    expected[key] = contents[key]
                else:
                    expected[key[:at + len(delimiter)]] = None
        source = branch.head() if of_head else branch
        found: dict[bytes, bytes | None] = {}
        after: bytes | None = None
        while True:
            page = source.list(prefix=prefix, delimiter=delimiter, after=after, limit=limit)
            assert len(page.entries) <= limit
            for entry in page.entries:
                assert entry.key not in found
                found[entry.key] = None if entry.record is None else entry.record.data
            after = page.next_after
            if after is None:
                break
        assert [*found.items()] == sorted(expected.items())

    @rule(name=names, prefix=prefixes, page_limit=st.integers(1, 4))
    def diff(self, name: str, prefix: bytes, page_limit: int) -> None:
        branch, model = self.pick(name)
        found = [(one.key, one.kind, one.left and one.left.data, one.right and one.right.data)
                 for one in branch.differences(prefix=prefix, page_limit=page_limit)]
        assert found == [one for one in differences(model.head, model.now) if one[0].startswith(prefix)]
        assert branch.is_dirty() == model.is_dirty

    # --- commits and HEAD

    @rule(name=names, allow_empty=st.booleans())
    def commit(self, name: str, allow_empty: bool) -> None:
        branch, model = self.pick(name)
        changed = differences(model.head, model.now)
        outcome = branch.commit("commit", allow_empty=allow_empty)
        if not changed and not allow_empty:
            assert outcome.is_empty
            return
        assert not outcome.is_empty
        assert [outcome.added, outcome.changed, outcome.removed] == [
            sum(one[1] == kind for one in changed) for kind in ("added", "changed", "removed")]
        self.moved(model, outcome.commit_id, model.now, *filter(None, [model.commit_id]))

    @rule(name=names, other=names, strategy=st.sampled_from(["fail", "source_wins", "destination_wins"]))
    def merge(self, name: str, other: str, strategy: Any) -> None:
        branch, model = self.pick(name)
        source_branch, source = self.pick(other)
        heads = list(filter(None, [source.commit_id])), list(filter(None, [model.commit_id]))
        result = merged(base_contents(self.commits, *heads), source.head, model.head, strategy)
        self.move(model, lambda: branch.merge(source_branch.name, strategy=strategy), result,
                  no_changes=merge_bases(self.commits, *heads) == heads[0], parent=source.commit_id)

    @rule(name=names, other=names, way=st.sampled_from(["revert", "cherry_pick"]), back=st.integers(0, 3))
    def apply_commit(self, name: str, other: str, way: str, back: int) -> None:
        branch, model = self.pick(name)
        commit_id = self.pick(other)[1].commit_id
        for _ in range(back):
            parents = self.commits[commit_id].parents if commit_id is not None else ()
            commit_id = parents[0] if parents else commit_id
        if commit_id is None:
            return
        commit = self.commits[commit_id]
        parent = self.commits[commit.parents[0]].contents if commit.parents else {}
        sides = (commit.contents, parent) if way == "revert" else (parent, commit.contents)
        result = merged(*sides, model.head, "fail")
        self.move(model, lambda: getattr(branch, way)(commit_id), result, no_changes=result == model.head)

    @rule(name=names, contents=st.dictionaries(keys, values, max_size=3))
    def commit_metarange(self, name: str, contents: Contents) -> None:
        branch, model = self.pick(name)
        metarange_id = self.world.committed.apply(None, [(key, Record.of(value)) for key, value in sorted(
            contents.items())]).metarange_id
        self.move(model, lambda: branch.commit_metarange(metarange_id, "import"), contents,
                  no_changes=contents == model.head and model.commit_id is not None)

    @rule(name=names, other=names, discard=st.booleans())
    def hard_reset(self, name: str, other: str, discard: bool) -> None:
        branch, model = self.pick(name)
        target = self.pick(other)[1]
        if model.is_dirty and not discard:
            with pytest.raises(DirtyBranch):
                branch.hard_reset(other if other in self.models else min(self.models))
            return
        branch.hard_reset(other if other in self.models else min(self.models), discard=discard)
        model.commit_id, model.head, model.now = target.commit_id, dict(target.head), dict(target.head)

    def move(self, model: Model, move: Callable[[], Any], result: Contents | None, *, no_changes: bool,
             parent: str | None = None) -> None:
        """Carry out a move of HEAD and check how it ended."""
        if model.is_dirty:
            with pytest.raises(DirtyBranch):
                move()
        elif no_changes:
            assert move().is_empty
        elif result is None:
            with pytest.raises(MergeConflict):
                move()
        else:
            outcome = move()
            assert not outcome.is_empty, outcome
            self.moved(model, outcome.commit_id, result, *filter(None, [model.commit_id, parent]))

    def moved(self, model: Model, commit_id: Any, contents: Contents, *parents: str) -> None:
        commit = self.world.repo.commit(commit_id)
        assert commit.parents == parents
        self.commits[commit_id] = ModelCommit(dict(contents), parents, commit.generation)
        model.commit_id, model.head, model.now = commit_id, dict(contents), dict(contents)

    # --- resets

    @rule(name=names)
    def reset(self, name: str) -> None:
        branch, model = self.pick(name)
        outcome = branch.reset()
        assert not (outcome.is_empty and model.is_dirty)
        model.now = dict(model.head)

    @rule(name=names, key=keys)
    def reset_key(self, name: str, key: bytes) -> None:
        branch, model = self.pick(name)
        branch.reset_key(key)
        model.now.pop(key, None)
        if key in model.head:
            model.now[key] = model.head[key]

    @rule(name=names, prefix=prefixes)
    def reset_prefix(self, name: str, prefix: bytes) -> None:
        branch, model = self.pick(name)
        branch.reset_prefix(prefix)
        model.now = {key: value for key, value in model.now.items() if not key.startswith(prefix)} | {
            key: value for key, value in model.head.items() if key.startswith(prefix)}

    # --- what nobody may notice

    @rule(name=names)
    def compact(self, name: str) -> None:
        branch, _ = self.pick(name)
        self.world.compact(branch.name)

    @rule(name=names)
    def seal(self, name: str) -> None:
        branch, _ = self.pick(name)
        self.world.seal(branch)

    @rule()
    def clean(self) -> None:
        self.world.clean()

    @invariant()
    def everything_is_as_the_model_says(self) -> None:
        for name, model in self.models.items():
            branch = self.world.repo.branch(name)
            assert {entry.key: entry.record.data for entry in branch.entries() if entry.record} == model.now
            assert {key: found.data for key, found in branch.head().records()} == model.head
            assert branch.record().commit_id == model.commit_id
        self.world.repo.audit()
        self.world.store.operations.clear()

    def teardown(self) -> None:
        self.store.close()


class ComparingValues(BranchMachine):
    """Predicates of the store may hold again."""

    make_store = staticmethod(lambda: MemoryStore(predicates="value"))


def run(machine: type[BranchMachine], examples: int, steps: int) -> None:
    run_state_machine_as_test(machine, settings=settings(
        max_examples=examples, stateful_step_count=steps, deadline=None))


@pytest.mark.parametrize(("machine", "examples"), [(BranchMachine, 10), (ComparingValues, 4)])
def test_branches_in_memory(machine: type[BranchMachine], examples: int) -> None:
    run(machine, examples, 30)


@pytest.mark.soak
@pytest.mark.parametrize("machine", [BranchMachine, ComparingValues])
def test_many_branches_in_memory(machine: type[BranchMachine]) -> None:
    run(machine, 300, 50)


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.cluster)])
def test_branches_in_other_stores(kind: str, tmp_path: Path) -> None:
    class InOtherStore(BranchMachine):
        make_store = staticmethod(lambda: BACKENDS[kind](tmp_path))

    run(InOtherStore, 4, 15)
