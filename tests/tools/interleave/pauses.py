# SPDX-License-Identifier: Apache-2.0
"""Pause an owner at every step while another takes over; and two writers at every step of each other.

Exactly two actors, on the stage of `tests.tools.interleave`: their stores are wrapped with it (`SteppedStore`,
`SteppedObjects`, `SteppedFiles`), so that each request is a step. Other than `explore_schedules` this looks at few
orders, all of which happen in the field: a process that stands still (a long garbage collection, a suspended machine, a
slow disk) while others go on, and wakes with what it knew.

>>> from compactlib.kv import MemoryStore
>>> from tests.tools.interleave import SteppedStore
>>> def world(stage):
...     store = SteppedStore(MemoryStore(), stage)
...     store.set(b"log", b"1", b"old")
...     return store
>>> def owner(store):
...     keys = [entry.key for entry in store.scan(b"log")]
...     store.set(b"head", b"owner", b"owner")
...     for key in keys:
...         store.delete(b"log", key)
>>> def heir(store):
...     store.set(b"head", b"owner", b"heir")
...     store.set(b"log", b"1", b"the heir's")
>>> def check(store, results):
...     assert not list(store.scan(b"log")) or store.get(b"log", b"1").value == b"the heir's"
...     if store.get(b"head", b"owner").value == b"heir":
...         assert list(store.scan(b"log")), "the heir's entry was deleted by a former owner"
>>> try:
...     explore_pauses({"owner": owner, "heir": heir}, world, check)
... except AssertionError as failed:
...     print(str(failed).splitlines()[0])
the schedule "owner*2 heir*2 owner" fails: AssertionError: the heir's entry was deleted by a former owner
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from compactlib.errors import InvalidInput
from compactlib.files.disk import Files, StrPath
from tests.tools.faults.files_in_front import FilesInFront
from tests.tools.interleave.access import Access, cell
from tests.tools.interleave.explore import Actors, Check, InterleavingReport, Theatre
from tests.tools.interleave.stage import Choose, Stage

WorldT = TypeVar("WorldT")


def explore_pauses(actors: Actors[WorldT], make_world: Callable[[Stage], WorldT], check: Check[WorldT], *,
                   both: bool = False, max_schedules: int | None = None) -> InterleavingReport:
    """Pause the first actor after each of its steps, let the second one go to its end, let the first one go on.

    Args:
        actors: two: who is paused, and who takes over. They must end whatever the other does, and share nothing but
            the stores; a lock that the first one holds in memory would never be given up.
        make_world: makes the world of one run, always the same, with stores that step on the stage it is given.
        check: called after each run, off the stage, with what each actor returned (or the library's error it raised):
            here the store is opened once more, and holds all that was acknowledged.
        both: pause the second one at each of its steps too, until the first one has ended: two writers of one thing.
            Costs steps times steps.
        max_schedules: with more than so many, try as many, evenly spread.

    Raises:
        InterleavingFailed: a run failed; has the schedule, for `replay_schedule`, and the story.
        InvalidInput: there are not two actors.
        ActorStuck: an actor waits for something off the stage.
    """
    if len(actors) != 2:
        raise InvalidInput(f"the actors are {', '.join(actors) or 'none'}; give two: who is paused, and who takes over")
    first, second = actors
    with Theatre(actors, make_world, check) as stage:
        # The longest life of each, learnt on the way: what the other has done may make it longer, or end it at once.
        steps = dict.fromkeys(actors, 0)
        for one, other in ((first, second), (second, first)):
            stage.perform(_switching(one, other, (0,)))
            steps = {name: max(most, sum(step.actor == name for step in stage.stage.steps))
                     for name, most in steps.items()}
        switches: list[tuple[int, ...]] = [(count,) for count in range(1, steps[first] + 2)]
        if both:
            switches += [(mine, theirs) for mine in range(steps[first] + 1) for theirs in range(1, steps[second] + 1)]
        for switch in _spread(switches, max_schedules):
            stage.perform(_switching(first, second, switch))
        return stage.report(complete=max_schedules is None or len(switches) <= max_schedules)


def _spread(switches: Sequence[tuple[int, ...]], limit: int | None) -> Sequence[tuple[int, ...]]:
    if limit is None or len(switches) <= limit:
        return switches
    return [switches[place * len(switches) // limit] for place in range(limit)]


def _switching(first: str, second: str, after: tuple[int, ...]) -> Choose:
    """`first` for `after[0]` steps, then `second` (for `after[1]` steps, then `first` to its end, then `second`)."""
    plan = [first] * after[0] + ([second] if len(after) == 1 else [second] * after[1] + [first])
    place = 0

    def choose(waiting: Mapping[str, Access], running: str | None) -> str:
        nonlocal place
        while place < len(plan) - 1 and plan[place] not in waiting:
            place += 1
        wanted = plan[min(place, len(plan) - 1)]
        place += 1
        return wanted if wanted in waiting else next(iter(waiting))

    return choose


class SteppedFiles(FilesInFront):
    """A `Files` in front of another one; each change is one step of the actor. Reads are none.

    Args:
        files: carries the changes out; the local disk if not given. Use a `RecordingFiles` and `explore_crashes` in the
            check for a power failure after each run.
        stage: whose actors use it.
    """

    def __init__(self, files: Files | None, stage: Stage) -> None:
        super().__init__(files)
        self._stage = stage

    @contextlib.contextmanager
    def step(self, operation: str, path: StrPath, *, target: StrPath | None = None,
             half: Callable[[], object] | None = None, grows: bool = False) -> Iterator[None]:
        """See `FilesInFront.step`: wait for the actor's turn."""
        # One cell for the whole disk: readers do not say what they read, so no two changes may be exchanged.
        name = str(target or path).rpartition("/")[2]
        self._stage.step(Access(f"{operation} {name}", (cell("disk", "", writes=True),)))
        yield

    def __repr__(self) -> str:
        return f"SteppedFiles({self._files!r})"
