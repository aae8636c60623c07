# SPDX-License-Identifier: Apache-2.0
"""A Hypothesis state machine that compares a `KVStore` with a plain dictionary.

    TestMyStore = kv_machine(lambda: MyStore(...)).TestCase
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from compactlib.errors import MissingDependency
from compactlib.kv import EXISTS, Condition, Delete, Entries, KeyNotFound, KVStore, Predicate, PredicateFailed, Put
from compactlib.testing.promises import same

try:
    from hypothesis import strategies as st
    from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
except ImportError:
    raise MissingDependency(package="hypothesis", extra="testing", purpose="trying a store on random calls") from None

names: st.SearchStrategy[bytes] = st.one_of(
    st.sampled_from([b"a", b"aa", b"a\x00", b"b", b"\x00", b"\xff", b"\xff\xff", b"a/b"]),
    st.binary(min_size=1, max_size=3),
)
"""Partitions and keys: few enough to meet again, with prefixes of each other."""
partitions: st.SearchStrategy[bytes] = st.sampled_from([b"p", b"p", b"p", b"p/q", b"\xff"])
values: st.SearchStrategy[bytes] = st.one_of(st.just(b""), st.binary(max_size=20))
bounds: st.SearchStrategy[bytes] = st.integers(0, 3).flatmap(lambda number: names if number == 3 else st.just(b""))
choices: st.SearchStrategy[str] = st.sampled_from(["right", "old", "none", "exists", "bogus"])


@attrs.define
class _OpenScan:
    """A scan under way: the last key that it gave, and the keys that it must still give."""

    entries: Entries
    partition: bytes
    last: bytes
    must: set[bytes]


class KVMachine(RuleBasedStateMachine):
    """Every operation of a store, on a few keys; see `kv_machine`."""

    def make_store(self) -> KVStore:
        """Return the empty store to begin with."""
        raise NotImplementedError("say which store is to be tested")

    def __init__(self) -> None:
        super().__init__()
        self.store: KVStore = self.make_store()
        self.model: dict[tuple[bytes, bytes], bytes] = {}
        self.old: dict[tuple[bytes, bytes], Predicate] = {}
        self.scan: _OpenScan | None = None

    @rule(partition=partitions, key=names, value=st.one_of(st.none(), values))
    def change(self, partition: bytes, key: bytes, value: bytes | None) -> None:
        self.remember(partition, key)
        if value is None:
            self.store.delete(partition, key)
        else:
            self.store.set(partition, key, value)
        self.note(partition, key, value)

    @rule(partition=partitions, key=names, value=st.one_of(st.none(), values), choice=choices)
    def change_if(self, partition: bytes, key: bytes, value: bytes | None, choice: str) -> None:
        condition, holds = self.condition(partition, key, choice)
        if value is None and condition.predicate is None:
            return
        self.remember(partition, key)
        try:
            if value is None:
                self.store.delete_if(partition, key, condition.predicate)
            else:
                self.store.set_if(partition, key, value, condition.predicate)
        except PredicateFailed:
            assert not holds, (
                f"the condition {choice!r} on {partition!r} {key!r} holds, and was refused: "
                f"{self.known(partition, key)}. Compare with what is there now, in the same step as the write")
        else:
            assert holds, (
                f"the condition {choice!r} on {partition!r} {key!r} does not hold, and the write was carried out: "
                f"{self.known(partition, key)}. Compare and write in one step, and change predicates with each write")
            self.note(partition, key, value)

    @rule(conditions=st.lists(st.tuples(partitions, names, choices), max_size=3),
          changes=st.dictionaries(st.tuples(partitions, names), st.one_of(st.none(), values), max_size=4))
    def transact(self, conditions: list[tuple[bytes, bytes, str]],
                 changes: dict[tuple[bytes, bytes], bytes | None]) -> None:
        held = [self.condition(*condition) for condition in conditions]
        for cell in changes:
            self.remember(*cell)
        puts = [Put(*cell, value) for cell, value in changes.items() if value is not None]
        deletes = [Delete(*cell) for cell, value in changes.items() if value is None]
        broken = [condition for condition, holds in held if not holds]
        try:
            self.store.transact([condition for condition, _ in held], puts, deletes)
        except PredicateFailed as failed:
            assert broken, f"a transaction was refused although {held} hold"
            same((failed.partition, failed.key), (broken[0].partition, broken[0].key),
                 case="the first condition that does not hold: check them in the order they are given in")
        else:
            assert not broken, (
                f"a transaction was carried out although {broken} do not hold. Conditions and changes are one step, "
                f"all or nothing")
            for cell, value in changes.items():
                self.note(*cell, value)

    @rule(partition=partitions, prefix=bounds, start=bounds, after=bounds, page_size=st.integers(1, 4))
    def scan_all(self, partition: bytes, prefix: bytes, start: bytes, after: bytes, page_size: int) -> None:
        with self.store.scan(partition, start, prefix=prefix, after=after or None, page_size=page_size) as entries:
            found = [(entry.key, entry.value) for entry in entries]
        same(found, [(key, value) for (place, key), value in sorted(self.model.items())
                     if place == partition and key.startswith(prefix) and key >= start and key > after],
             case=f"a scan of {partition!r}, prefix={prefix!r}, start={start!r}, after={after!r}, page_size={page_size}"
                  f": every entry once, in the order of the keys' bytes")

    @rule(partition=partitions, page_size=st.integers(1, 5))
    def begin_scan(self, partition: bytes, page_size: int) -> None:
        if self.scan is not None:
            self.scan.entries.close()
        self.scan = _OpenScan(self.store.scan(partition, page_size=page_size), partition, b"",
                              {key for place, key in self.model if place == partition})

    @rule()
    def step_scan(self) -> None:
        if self.scan is None:
            return
        entry = next(self.scan.entries, None)
        skipped = sorted(key for key in self.scan.must if entry is None or key < entry.key)
        assert not skipped, (
            f"the scan skipped {skipped}, which were there all the time. Ask for the next page by key > last, not by "
            f"an offset")
        if entry is None:
            self.scan = None
            return
        assert entry.key > self.scan.last, (
            f"the keys of a scan do not ascend: {entry.key!r} comes after {self.scan.last!r}. Order by bytes")
        self.scan.last = entry.key
        self.scan.must.discard(entry.key)

    @rule(key=names)
    def seek_scan(self, key: bytes) -> None:
        if self.scan is not None:
            self.scan.entries.seek(key)
            # Keys that were written since a page was loaded may be missing in it: only what was owed is still owed.
            self.scan = attrs.evolve(self.scan, last=b"", must={other for other in self.scan.must if other >= key})

    @invariant()
    def agrees_with_the_model(self) -> None:
        for (partition, key), value in self.model.items():
            try:
                found = self.store.get(partition, key).value
            except KeyNotFound:
                raise AssertionError(f"{partition!r} {key!r} is gone, and it was not deleted; {value!r} was written "
                                     f"last") from None
            same(found, value, case=f"{partition!r} {key!r}: what was written last")
        self.store.audit()

    def teardown(self) -> None:
        self.store.close()

    def condition(self, partition: bytes, key: bytes, choice: str) -> tuple[Condition, bool]:
        """Return a condition on a key, and whether it holds."""
        predicate: Predicate | None = None
        present = (partition, key) in self.model
        current = self.store.get(partition, key).predicate if present else None
        match choice:
            case "right" if present:
                predicate = current
            case "old":
                predicate = self.old.get((partition, key), b"bogus")
            case "exists":
                predicate = EXISTS
            case "bogus":
                predicate = b"bogus"
        holds = (not present if predicate is None else present and (predicate is EXISTS or predicate == current))
        return Condition(partition, key, predicate), holds

    def known(self, partition: bytes, key: bytes) -> str:
        """What the model knows of a key, as text."""
        value = self.model.get((partition, key))
        return "there is nothing" if value is None else f"it holds {value!r}"

    def remember(self, partition: bytes, key: bytes) -> None:
        """Keep the key's present predicate, to use it later."""
        try:
            found = self.store.get(partition, key)
        except KeyNotFound:
            return
        assert (partition, key) in self.model, f"{partition!r} {key!r} is there, and it was deleted, or never written"
        self.old[partition, key] = found.predicate

    def note(self, partition: bytes, key: bytes, value: bytes | None) -> None:
        """Change the model."""
        if value is None:
            self.model.pop((partition, key), None)
        else:
            self.model[partition, key] = value
        if self.scan is not None and partition == self.scan.partition:
            self.scan.must.discard(key)


def kv_machine(make: Callable[[], KVStore]) -> type[KVMachine]:
    """Return a state machine for the stores that `make` makes; pytest and unittest find its `TestCase`."""

    class Machine(KVMachine):
        def make_store(self) -> KVStore:
            return make()

    return Machine
