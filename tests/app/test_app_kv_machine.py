# SPDX-License-Identifier: Apache-2.0
"""The demo's state machine: its commands, and that its live indexes are exactly what the log must keep."""

from __future__ import annotations

import tempfile
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from compactlib.app.kv_machine import Command, Delete, KvMachine, Put, Rewrite, decode_command, encode_command
from compactlib.errors import CompactlibError, InvalidInput, Unsorted
from compactlib.indexset import IndexSet
from compactlib.outcome import Failed
from compactlib.raftlog import Entry, LogOptions, LogReader, SegmentLimits, SegmentLog

keys = st.sampled_from("abcde")
commands = st.one_of(st.builds(Put, keys, st.binary(max_size=8)), st.builds(Delete, keys))
rewrites = st.builds(Rewrite, keys, st.binary(max_size=8), st.integers(0, 2**64 - 1))


def state_of(history: list[Command]) -> dict[str, bytes]:
    """The plain model: what a dictionary holds in the end."""
    state: dict[str, bytes] = {}
    for command in history:
        if isinstance(command, Put):
            state[command.key] = command.value
        else:
            state.pop(command.key, None)
    return state


def values_of(machine: KvMachine, entries: dict[int, bytes]) -> dict[str, bytes]:
    """What the machine says that its keys are, read from a log."""
    found: dict[str, bytes] = {}
    for key, index in machine.places.items():
        command = decode_command(entries[index])
        assert isinstance(command, Put)
        assert command.key == key
        found[key] = command.value
    return found


def apply(machine: KvMachine, index: int, command: Command) -> bool:
    return machine.apply(Entry(index, 1, encode_command(command)))


def machine_of(entries: dict[int, bytes]) -> KvMachine:
    return KvMachine.rebuilt(Entry(index, 1, payload) for index, payload in sorted(entries.items()))


@given(st.lists(commands), st.data())
def test_the_live_entries_of_a_snapshot_and_what_follows_it_rebuild_the_store(history: list[Command],
                                                                             data: st.DataObject) -> None:
    entries = {index: encode_command(command) for index, command in enumerate(history, 1)}
    snapshot = data.draw(st.integers(0, len(history)))
    live = machine_of({index: payload for index, payload in entries.items() if index <= snapshot}).live_indexes()
    kept = {index: payload for index, payload in entries.items() if index in live or index > snapshot}
    assert machine_of(kept) == machine_of(entries)
    assert values_of(machine_of(kept), kept) == state_of(history)


@attrs.frozen
class Propose:
    """A rewrite of the n-th entry so far, as somebody saw it then; that it is live is not said."""

    which: int


@given(st.lists(st.one_of(commands, st.builds(Propose, st.integers(0, 30)))), st.data())
def test_a_rewrite_changes_no_value_whatever_came_before_it_was_applied(history: list[Command | Propose],
                                                                        data: st.DataObject) -> None:
    """The proposal may be older than any put or delete of its key, and be made again after it has taken effect."""
    machine, entries, plain = KvMachine(), dict[int, bytes](), list[Command]()
    for index, step in enumerate(history, 1):
        if isinstance(step, Propose):
            # The content of an entry never changes, so it is what was read when the proposal was made, too.
            of = step.which % index
            old = decode_command(entries[of]) if of in entries else Put("a", b"never written")
            command: Command = Rewrite(old.key, old.value, of) if isinstance(old, Put) else old
        else:
            command = step
        if not isinstance(command, Rewrite):
            plain.append(command)
        entries[index] = encode_command(command)
        live = machine.live_indexes()
        machine.apply(Entry(index, 1, entries[index]))
        if isinstance(command, Rewrite):
            assert (index in machine.live_indexes()) == (command.of in live)
        machine.audit()
    assert values_of(machine, entries) == state_of(plain)
    # What a snapshot leaves, and what follows it, says the same.
    snapshot = data.draw(st.integers(0, len(history)))
    live = machine_of({index: payload for index, payload in entries.items() if index <= snapshot}).live_indexes()
    kept = (Entry(index, 1, payload) for index, payload in entries.items() if index in live or index > snapshot)
    assert KvMachine.rebuilt(kept, snapshot=snapshot) == machine


@given(st.lists(commands))
def test_no_live_entry_can_be_spared(history: list[Command]) -> None:
    entries = {index: encode_command(command) for index, command in enumerate(history, 1)}
    machine = machine_of(entries)
    live = machine.live_indexes()
    assert len(live) == len(machine) == len(state_of(history))
    for spared in live:
        assert machine_of({index: entries[index] for index in live if index != spared}) != machine


@given(st.one_of(commands, rewrites))
def test_a_command_survives_the_log(command: Command) -> None:
    assert decode_command(encode_command(command)) == command


def test_the_encoding_is_the_documented_one() -> None:
    assert encode_command(Put("käse", b"\0x")) == b"\x01\x05\0\0\0k\xc3\xa4se\0x"
    assert encode_command(Delete("a")) == b"\x02\x01\0\0\0a"
    assert encode_command(Rewrite("a", b"x", 258)) == b"\x03\x01\0\0\0a\x02\x01\0\0\0\0\0\0x"


def test_a_key_that_is_no_utf_8_is_kept_as_it_is() -> None:
    key = b"caf\xe9.txt".decode("utf-8", "surrogateescape")
    assert decode_command(encode_command(Put(key, b""))) == Put(key, b"")


@given(st.binary(max_size=12))
def test_any_bytes_are_a_command_or_refused_by_name(payload: bytes) -> None:
    try:
        command = decode_command(payload)
    except InvalidInput as error:
        assert f"{len(payload)}" in str(error)
    else:
        assert isinstance(command, Put | Delete)


@pytest.mark.parametrize("payload", [b"", b"\x01\0\0\0", b"\x04\0\0\0\0", b"\x03\0\0\0\0seven b", b"\x01\x02\0\0\0a",
                                     b"\x02\x01\0\0\0ab"])
def test_what_is_no_command_is_refused(payload: bytes) -> None:
    with pytest.raises(InvalidInput, match="another state machine"):
        decode_command(payload)


@pytest.mark.parametrize("again", [5, 4])
def test_an_index_that_does_not_ascend_is_refused_and_changes_nothing(again: int) -> None:
    machine = KvMachine()
    apply(machine, 5, Put("a", b""))
    with pytest.raises(Unsorted) as caught:
        apply(machine, again, Delete("a"))
    assert (caught.value.previous, caught.value.found) == (5, again)
    assert machine.places == {"a": 5}


def test_deleting_what_is_not_there_changes_nothing() -> None:
    machine = KvMachine()
    apply(machine, 1, Delete("a"))
    assert (machine.places, machine.live_indexes()) == ({}, IndexSet())


def test_places_are_a_copy() -> None:
    machine = KvMachine()
    apply(machine, 1, Put("a", b""))
    machine.places.clear()
    assert machine.places == {"a": 1}


def test_the_audit_finds_two_keys_with_one_entry() -> None:
    machine = KvMachine()
    apply(machine, 1, Put("a", b""))
    machine._places["b"] = 1  # noqa: SLF001 - no public call does this, which is the point
    with pytest.raises(CompactlibError, match="2 keys claim 1 entries"):
        machine.audit()


class Store(RuleBasedStateMachine):
    """The machine on a real log, with snapshots, compactions and restarts, against a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.scratch = tempfile.TemporaryDirectory()
        self.folder = Path(self.scratch.name) / "log"
        self.options = LogOptions(limits=SegmentLimits(max_entries=3))
        self.log = SegmentLog(self.folder, self.options)
        self.machine = KvMachine()
        self.model: dict[str, bytes] = {}
        self.last = 0

    def teardown(self) -> None:
        self.log.close()
        self.scratch.cleanup()

    @rule(batch=st.lists(commands, min_size=1, max_size=8))
    def write(self, batch: list[Command]) -> None:
        for command in batch:
            self.last += 1
            self.log.append(self.last, 1, encode_command(command))
            apply(self.machine, self.last, command)
            if isinstance(command, Put):
                self.model[command.key] = command.value
            else:
                self.model.pop(command.key, None)

    @rule()
    def snapshot(self) -> None:
        self.log.record_snapshot(self.last, self.machine.live_set())

    @rule()
    def compact(self) -> None:
        assert not isinstance(self.log.compact(policy=self.log.policy), Failed)

    @rule()
    def start_again(self) -> None:
        self.log.close()
        self.log = SegmentLog(self.folder, self.options)
        self.machine = KvMachine.rebuilt(self.log.entries())

    @invariant()
    def the_log_alone_holds_the_store(self) -> None:
        self.machine.audit()
        self.log.sync()
        with LogReader(self.folder) as reader:
            entries = {entry.index: entry.payload for entry in reader.entries()}
        rebuilt = machine_of(entries)
        assert rebuilt == self.machine
        assert values_of(rebuilt, entries) == self.model


def test_the_store_on_a_log_that_is_compacted() -> None:
    run_state_machine_as_test(Store, settings=settings(max_examples=25, stateful_step_count=20))
