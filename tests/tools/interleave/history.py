# SPDX-License-Identifier: Apache-2.0
"""What reads may return, judged by a history of operations that overlapped: the oracle for stores of single keys.

The rule is the weakest one that users can build on (a *regular* register in Lamport's sense): a read
returns a value that was written by a write which began before the read ended, and which no acknowledged write overwrote
completely (began after its end, and ended) before the read began. A write that failed may take effect at any time
after it began. Writes that overlap are in no order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import attrs

from tests.tools.interleave.stage import Stage

ABSENT: Final = "absent"
"""What a key holds that is not there."""

Value: TypeAlias = Any
"""What a key holds: anything that can be compared and hashed."""


@attrs.define
class HistoryOperation:
    """One operation, from the step that began it to the one that ended it.

    Attributes:
        actor: whose.
        name: what.
        begin: the number of its first step.
        last: the number of its last step but the mark of its end.
        end: the number of the mark of its end; `None` if it failed or never ended: it may take effect at any time.
        writes: for each key the values that it may have written.
        reads: for each key what it returned.
        result: what the actor notes about it.
    failed: whether it was not acknowledged; an actor may say so of an operation that was refused.
    """

    actor: str
    name: str
    begin: int = 0
    last: int = 0
    end: int | None = None
    writes: dict[bytes, frozenset[Value]] = attrs.field(factory=dict)
    reads: dict[bytes, Value] = attrs.field(factory=dict)
    result: Any = None
    failed: bool = False

    def write(self, key: bytes, *values: Value) -> None:
        """It wrote one of these values, as far as it did."""
        self.writes[key] = frozenset(values)

    def before(self, begin: int) -> bool:
        """Whether it was acknowledged before the step `begin`."""
        return self.end is not None and self.end < begin

    def __str__(self) -> str:
        return f"{self.actor}: {self.name} [{self.begin}..{'?' if self.end is None else self.end}]"


class History:
    """The operations of one run, and what was there before.

    Args:
        stage: gives the times.
        initial: what the keys hold before the first step.

    Attributes:
        operations: in the order in which they began.
    """

    def __init__(self, stage: Stage, initial: Mapping[bytes, Value]) -> None:
        self.operations: list[HistoryOperation] = []
        self._stage = stage
        self._initial = dict(initial)

    @contextmanager
    def operation(self, actor: str, name: str) -> Iterator[HistoryOperation]:
        """Note an operation; what it raises is noted as its result and goes through. It counts as failed then."""
        noted = HistoryOperation(actor, name)
        self.operations.append(noted)
        with self._stage.operation() as interval:
            try:
                yield noted
            except BaseException as error:
                noted.result, noted.failed = error, True
                raise
            finally:
                noted.begin = interval.begin or self._stage.now + 1
                noted.last = self._stage.now
        if not noted.failed:
            noted.end = interval.end

    def allowed(self, key: bytes, begin: int, end: int, *, without: HistoryOperation | None = None) -> frozenset[Value]:
        """What a read of a key may return that began and ended with these steps.

        Args:
            key: which key.
            begin: the read's first step.
            end: its last step.
            without: an operation whose own write does not count.
        """
        writes = [each for each in self.operations if key in each.writes and each is not without]
        over = [each for each in writes if each.before(begin)]
        found: set[Value] = set()
        if not over:
            found.add(self._initial.get(key, ABSENT))
        for write in writes:
            if write.begin <= end and not (write.end is not None and any(
                    write.end < later.begin for later in over)):
                found |= write.writes[key]
        return frozenset(found)

    def check_reads(self) -> None:
        """Every read returned what it may.

        Raises:
            AssertionError: one did not; says which, and what it may have returned.
        """
        for read in self.operations:
            for key, value in read.reads.items():
                allowed = self.allowed(key, read.begin, read.last, without=read)
                assert value in allowed, (f"{read} found {value!r} under {key!r}; allowed: {_listed(allowed)}; "
                                          f"history: {self}")

    def check_final(self, state: Mapping[bytes, Value], keys: Iterable[bytes],
                    explain: Callable[[], str] = str) -> None:
        """What is there at the end may be there.

        Raises:
            AssertionError: it may not.
        """
        end = self._stage.now + 1
        for key in keys:
            value, allowed = state.get(key, ABSENT), self.allowed(key, end, end)
            assert value in allowed, (f"at the end {key!r} holds {value!r}; allowed: {_listed(allowed)}; "
                                      f"history: {self} {explain()}".rstrip())

    def __str__(self) -> str:
        return "; ".join(map(str, self.operations))


def _listed(values: Iterable[Value]) -> str:
    return ", ".join(sorted(map(repr, values)))
