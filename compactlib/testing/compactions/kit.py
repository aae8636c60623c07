# SPDX-License-Identifier: Apache-2.0
"""What the promises of `contract.Compaction` are tried with: opening, filling, judging answers."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from compactlib.errors import BudgetSpent, CompactlibError
from compactlib.outcome import Done, Failed, Skipped
from compactlib.testing.compactions.factory import CompactionFactory
from compactlib.testing.faults.plan import Crash
from compactlib.testing.kit.conformance import Mismatch, shown
from compactlib.testing.kit.contract_actors import Call, CheckedFiles

_TELLS = re.compile(r"\d|\w_\w|=")
_PLAIN = (bool, int, float, str, bytes, type(None))
_MOST_COMPACTIONS = 8


@attrs.frozen
class Opened:
    """A store that a check has open.

    Attributes:
        store: what is checked.
        folder: where it lies.
        files: its disk.
        acknowledged: what filling it has acknowledged so far.
        factory: knows it.
    """

    store: Any
    folder: Path
    files: CheckedFiles
    acknowledged: list[Any]
    factory: CompactionFactory

    def view(self, **named: Any) -> Any:
        """`view()` with the factory's arguments."""
        return self.store.view(**{**self.factory.extra(self.store, "view"), **named})

    def plan(self, *given: Any, **named: Any) -> Any:
        """`plan()` with the factory's arguments."""
        return self.store.plan(*given, **{**self.factory.extra(self.store, "plan"), **named})

    def compact(self, *given: Any, **named: Any) -> Any:
        """`compact()` with the factory's arguments."""
        return self.store.compact(*given, **{**self.factory.extra(self.store, "compact"), **named})

    def reclaim(self, **named: Any) -> Any:
        """`reclaim()` with the factory's arguments."""
        return self.store.reclaim(**{**self.factory.extra(self.store, "reclaim"), **named})

    def fill(self, number: int) -> None:
        """Write, and keep what is acknowledged."""
        self.acknowledged.append(self.factory.fill(self.store, number))

    def state(self) -> object:
        """See `CompactionFactory.state`."""
        return self.factory.state(self.store)

    def contents(self) -> object:
        """See `CompactionFactory.contents`."""
        return self.factory.contents(self.folder, self.store)

    def check(self, after: str) -> None:
        """What was acknowledged is there.

        Raises:
            Mismatch: it is not; says after what.
        """
        try:
            self.factory.check(self.store, tuple(self.acknowledged))
        except Exception as error:
            raise Mismatch(f"after {after}: {type(error).__name__}: {error}", "everything acknowledged to be there"
                           ) from error

    def reads(self, reader: Any, after: str) -> None:
        """What was acknowledged is what a reader finds.

        Raises:
            Mismatch: it is not; says after what.
        """
        attrs.evolve(self, store=reader).check(after)

    def finish(self, after: str) -> None:
        """Compact until nothing is left to do, and look whether everything is there, and nothing runs.

        Raises:
            Mismatch: it does not come to its end.
        """
        for _ in range(_MOST_COMPACTIONS):
            outcome = self.compact()
            if isinstance(outcome, Skipped):
                break
            if not isinstance(outcome, Done):
                raise Mismatch(f"after {after} the next compact() answered {outcome!r}",
                               "it to go on with what is left: Done, then Skipped")
        else:
            raise Mismatch(f"after {after} each of {_MOST_COMPACTIONS} compactions found something to do",
                           "them to come to rest")
        plan = self.plan()
        if not plan.is_empty:
            raise Mismatch(f"after {after} compact() is Skipped ({outcome.reason}), but plan() is {plan!r}",
                           "a plan that is empty, or a compaction that carries it out")
        self.idle(after)
        self.store.audit()
        self.check(after)

    def idle(self, after: str) -> None:
        """Nothing runs, as far as the store says.

        Raises:
            Mismatch: something does.
        """
        status = self.store.status()
        if status.is_busy:
            raise Mismatch(f"after {after}: {status!r}", "is_busy to be false: every end of a run releases it")


def open_files(folder: Path) -> list[str]:
    """What of a folder this process has open; nothing where the system does not say."""
    found = []
    with contextlib.suppress(OSError):
        for descriptor in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [name for name in found if name.startswith(f"{folder}/")]


@contextlib.contextmanager
def closing(opened: Opened) -> Iterator[None]:
    """Close the store at the end; what went wrong before is reported, not what then goes wrong with closing."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            Call(opened.store.close, "close()").wait()
            opened.factory.release(opened.store)
        raise
    Call(opened.store.close, "close()").answer()
    opened.factory.release(opened.store)


def done(outcome: object, when: str) -> Done[Any]:
    """The outcome of a compaction that had something to do and nothing in its way.

    Raises:
        Mismatch: it is not `Done`.
    """
    if not isinstance(outcome, Done):
        raise Mismatch(f"{when}: {outcome!r}", "Done")
    return outcome


def skipped(outcome: object, when: str) -> Skipped:
    """The outcome of a compaction that was turned away or had nothing to do.

    Raises:
        Mismatch: it is not `Skipped`, or has no reason.
    """
    if not isinstance(outcome, Skipped) or not outcome.reason.strip():
        raise Mismatch(f"{when}: {outcome!r}", "Skipped, with a reason")
    return outcome


def failed(outcome: object, kind: type[CompactlibError] | tuple[type[CompactlibError], ...], when: str) -> Failed:
    """The outcome of a compaction that something of this kind has ended.

    Raises:
        Mismatch: it is not `Failed` with such an error.
    """
    if not isinstance(outcome, Failed) or not isinstance(outcome.error, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        raise Mismatch(f"{when}: {outcome!r}", f"Failed({' or '.join(each.__name__ for each in kinds)})")
    if outcome.changed not in ("no", "partly", "unknown"):
        raise Mismatch(f"{when}: changed={shown(outcome.changed)}", "'no', 'partly' or 'unknown'")
    return outcome


def spent(outcome: object, when: str) -> Failed:
    """The outcome of a compaction whose budget was spent or cancelled."""
    return failed(outcome, BudgetSpent, when)


def attempt(call: Callable[[], object]) -> object:
    """What a call returns, or the library's error that it raises."""
    try:
        return call()
    except CompactlibError as error:
        return error


def one_done(outcomes: Sequence[object], when: str) -> None:
    """Of two compactions one was done, and the other skipped.

    Raises:
        Mismatch: it is not so.
    """
    if [isinstance(outcome, Done) for outcome in outcomes].count(True) != 1 or not all(
            isinstance(outcome, Done | Skipped) for outcome in outcomes):
        raise Mismatch(f"{when}: {outcomes}", "one Done, and one Skipped")


def truthful(opened: Opened, outcome: Failed, before: object, when: str) -> None:
    """`changed` says what the store shows.

    Raises:
        Mismatch: it says "no" and something has changed, or "partly" and nothing has.
    """
    after = opened.state()
    if outcome.changed == "no" and after != before:
        raise Mismatch(f"{when}: {outcome!r}, but the store was {shown(before)} and is {shown(after)}",
                       'changed="partly", or "unknown"')
    if outcome.changed == "partly" and after == before:
        raise Mismatch(f"{when}: {outcome!r}, but the store is as it was", 'changed="no"')


def tells_why(why: Any) -> None:
    """A reason for doing nothing names a gate.

    Raises:
        Mismatch: it has no number in it, and no setting.
    """
    if not isinstance(why, str) or not _TELLS.search(why):
        raise Mismatch(shown(why), "a sentence with the value that shut the gate, and the setting to change")


def is_a_value(what: str, value: Any) -> None:
    """Frozen, picklable, printed in one line, and plain in `to_dicts()`.

    Raises:
        Mismatch: it is not.
    """
    if value is None:
        raise Mismatch(f"{what} answered None", "a value")
    line = repr(value)
    if "\n" in line or not line.strip():
        raise Mismatch(f"repr({what}) is {shown(line)}", "one line")
    again = pickle.loads(pickle.dumps(value))
    if again != value:
        raise Mismatch(f"{what} differs from what it is after pickling: {shown(again)}", shown(value))
    rows = value.to_dicts()
    if not isinstance(rows, list) or not all(isinstance(row, dict) and _is_plain(row) for row in rows):
        raise Mismatch(f"{what}.to_dicts() is {shown(rows)}", "a list of dictionaries of plain values")
    name = next((name for name in ("why", "is_busy") if hasattr(value, name)), "to_dicts")
    try:
        setattr(value, name, getattr(value, name))
    except AttributeError:
        return
    raise Mismatch(f"{what}.{name} can be set", "a frozen value")


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def let_go(opened: Opened) -> None:
    """Close a store whose disk has ended with its process."""
    for call in (opened.store.close, lambda: opened.factory.release(opened.store)):
        try:
            call()
        except (Crash, CompactlibError):
            continue
