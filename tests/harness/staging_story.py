# SPDX-License-Identifier: Apache-2.0
"""Plays a story of the staging area: commands, and after `----` their results.

    branch main head a=1 b=2 staged c=3 b=- sealed d=4 compacted a=5    (`-`: tombstone; several `sealed`, newest first)
    put main a 9      delete main a        get main a       list main [limit]     head main     diff main
    commit main       compact main         reset main       reset_key main a      reset_prefix main p/
    merge main dev    hard_reset main dev [discard]         put_if main a 9 [7]   (if it is 7, or absent)
    create dev main   drop dev             clean            time +301
    show main                       what is there now, how much is sealed, what is compacted, and HEAD

An actor is another process, which may be paused at a request:

    ann: commit main until record 2     pause ann before her second compare-and-set of a branch record
    ann: delete main k until write k    pause her before she writes an entry of the key k; `read k`: before a read
    ann: reset main until scan          pause her before she scans a token
    ann goes on                         let her finish; returns her results
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

from compactlib.errors import CompactlibError
from compactlib.staging import Record
from compactlib.staging.errors import LostRace
from tests.harness.faulty_store import FaultyStore
from tests.harness.staging_world import StagingWorld as World, State, contents, diff, ended, head_contents, record

_WAIT_SECONDS = 60.0
"""The time limit of a wait for an actor."""


class Actor:
    """One operation in another thread; either this thread or the story's runs."""

    def __init__(self, operation: Callable[[Actor], list[str]], stop: Callable[[Any], bool]) -> None:
        self._stop = stop
        self._turn = threading.Event()
        self._back = threading.Event()
        self._output: list[str] = []
        self.has_stopped = False
        self._thread = threading.Thread(target=self._run, args=(operation,), daemon=True)
        self._thread.start()
        self._wait_for_it()

    def choose(self, operation: Any) -> None:
        """Decide before each operation of the store whether to pause."""
        if not self.has_stopped and self._stop(operation):
            self.has_stopped = True
            self._back.set()
            assert self._turn.wait(_WAIT_SECONDS)

    def go_on(self) -> list[str]:
        """Let the actor finish, and return its results."""
        self._turn.set()
        self._thread.join(_WAIT_SECONDS)
        assert not self._thread.is_alive()
        return self._output

    def _run(self, operation: Callable[[Actor], list[str]]) -> None:
        try:
            self._output = operation(self)
        finally:
            self._back.set()

    def _wait_for_it(self) -> None:
        assert self._back.wait(_WAIT_SECONDS)


class Story:
    """One story being played."""

    def __init__(self) -> None:
        self._seeds = itertools.count(1)
        self._world = World(seed=next(self._seeds))
        self._actors: dict[str, Actor] = {}

    def run(self, text: str) -> None:
        """Play all commands; the first other result than in the story is an AssertionError."""
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        try:
            for block in re.split(r"\n\s*\n", "\n".join(lines).strip()):
                commands, _, expected = block.partition("\n----\n")
                output = [line for command in commands.splitlines() for line in self._line(command)]
                assert "\n".join(output) == expected.strip(), commands
            assert not self._actors, f"still on their way: {', '.join(self._actors)}"
        finally:
            for actor in self._actors.values():
                actor.go_on()
        self._world.repo.audit()

    def _line(self, line: str) -> list[str]:
        if line.endswith(" goes on"):
            return self._actors.pop(line.split()[0]).go_on()
        name, colon, rest = line.partition(": ")
        if not colon:
            return self._played(self._world, line)
        command, _, until = rest.partition(" until ")
        actor = Actor(lambda actor: self._as_actor(actor, command), _stop_at(until.split()))
        assert actor.has_stopped, f"{name} came to her end: {actor.go_on()}"
        self._actors[name] = actor
        return []

    def _as_actor(self, actor: Actor, command: str) -> list[str]:
        world = World(FaultyStore(self._world.store, actor.choose), self._world.objects, seed=next(self._seeds))
        world.clock.set_now(self._world.clock.now())
        return self._played(world, command)

    def _played(self, world: World, command: str) -> list[str]:
        words = command.split()
        play: Callable[..., Iterator[str]] = getattr(self, f"_{words[0]}")
        try:
            return list(play(world, *words[1:]))
        except LostRace:
            return ["lost the race"]
        except CompactlibError as error:
            return [type(error).__name__]

    # ----------------------------------------------------------------------------------------------- commands

    def _branch(self, world: World, name: str, *words: str) -> Iterator[str]:
        layers: dict[str, list[dict[str, str | None]]] = {"head": [], "staged": [], "sealed": [], "compacted": []}
        for word in words:
            if word in layers:
                layers[word].append({})
                present = layers[word][-1]
            else:
                key, _, value = word.partition("=")
                present[key] = None if value == "-" else value
        world.branch(_only(layers["head"]), name=name, staged=_only(layers["staged"]), sealed=layers["sealed"],
                     compacted=_only(layers["compacted"]))
        yield from ()

    def _create(self, world: World, name: str, source: str) -> Iterator[str]:
        world.repo.create_branch(name, source)
        yield from ()

    def _drop(self, world: World, name: str) -> Iterator[str]:
        world.repo.delete_branch(name)
        yield from ()

    def _put(self, world: World, name: str, key: str, value: str) -> Iterator[str]:
        world.repo.branch(name).put(key.encode(), value.encode())
        yield from ()

    def _put_if(self, world: World, name: str, key: str, value: str, expected: str | None = None) -> Iterator[str]:
        state: Record | None = None if expected is None else record(expected)
        world.repo.branch(name).put_if(key.encode(), value.encode(), state)
        yield "put"

    def _delete(self, world: World, name: str, key: str) -> Iterator[str]:
        world.repo.branch(name).delete(key.encode())
        yield from ()

    def _get(self, world: World, name: str, key: str) -> Iterator[str]:
        yield world.repo.branch(name).get(key.encode()).data.decode()

    def _list(self, world: World, name: str, limit: str = "1000") -> Iterator[str]:
        page = world.repo.branch(name).list(limit=int(limit))
        yield _texts({entry.key.decode(): entry.record.data.decode() for entry in page.entries if entry.record})

    def _head(self, world: World, name: str) -> Iterator[str]:
        yield _texts(head_contents(world.repo.branch(name)))

    def _diff(self, world: World, name: str) -> Iterator[str]:
        yield from diff(world.repo.branch(name)) or ["nothing"]

    def _commit(self, world: World, name: str) -> Iterator[str]:
        yield _told(world.repo.branch(name).commit("commit"))

    def _merge(self, world: World, name: str, source: str) -> Iterator[str]:
        yield _told(world.repo.branch(name).merge(source))

    def _hard_reset(self, world: World, name: str, ref: str, discard: str = "") -> Iterator[str]:
        yield _told(world.repo.branch(name).hard_reset(ref, discard=bool(discard)))

    def _reset(self, world: World, name: str) -> Iterator[str]:
        yield _told(world.repo.branch(name).reset())

    def _reset_key(self, world: World, name: str, key: str) -> Iterator[str]:
        yield _told(world.repo.branch(name).reset_key(key.encode()))

    def _reset_prefix(self, world: World, name: str, prefix: str) -> Iterator[str]:
        yield _told(world.repo.branch(name).reset_prefix(prefix.encode()))

    def _compact(self, world: World, name: str) -> Iterator[str]:
        yield _told(world.repo.compact(branch=name))

    def _clean(self, world: World) -> Iterator[str]:
        world.clean()
        yield from ()

    def _time(self, world: World, step: str) -> Iterator[str]:
        world.clock.advance(float(step))
        yield from ()

    def _show(self, world: World, name: str) -> Iterator[str]:
        branch = world.repo.branch(name)
        status = branch.record()
        yield f"now {_texts(contents(branch))}"
        if status.sealed_tokens:
            yield f"sealed {len(status.sealed_tokens)}"
        if status.compacted_metarange_id is not None:
            records = world.committed.scan(status.compacted_metarange_id)
            yield f"compacted {_texts({key.decode(): found.data.decode() for key, found in records})}"
        yield f"head {_texts(head_contents(branch))}"


def _stop_at(words: list[str]) -> Callable[[Any], bool]:
    """Parse `record 2` (the second compare-and-set of a branch record), `write k` and `read k` (an entry of key k)."""
    kind, *rest = words
    rest = rest if kind in ("write", "read") else ["", *rest]
    left = int(rest[1]) if len(rest) > 1 else 1

    def stop(operation: Any) -> bool:
        nonlocal left
        is_entry = operation.partition.startswith(b"stg-")
        matches: bool = {
            "record": operation.key.startswith(b"branches/") and operation.kind in ("set_if", "transact"),
            # A conditional write is a transaction whose first cell is the branch record.
            "write": operation.kind == "transact" or (is_entry and operation.changes
                                                      and operation.key == rest[0].encode()),
            "scan": is_entry and operation.kind == "scan",
            "read": is_entry and not operation.changes and operation.key == rest[0].encode(),
        }[kind]
        left -= matches
        return matches and left == 0

    return stop


def _only(layers: list[dict[str, str | None]]) -> State | None:
    assert len(layers) <= 1
    return layers[0] if layers else None


def _texts(state: dict[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(state.items())) or "empty"


def _told(report: Any) -> str:
    if not report.is_empty:
        if hasattr(report, "commit_id"):
            again = f", built {report.rebuilds + 1} times" if report.rebuilds else ""
            return f"committed +{report.added} ~{report.changed} -{report.removed}{again}"
        return "done"
    if "window_seconds" in report.why:
        return "throttled"
    return ended(report).replace("_", " ") if hasattr(report, "commit_id") else "nothing to do"
