# SPDX-License-Identifier: Apache-2.0
"""Try a source of need of your own, and with it the catalog's promise that what it needs is never cut away.

>>> from compactlib.catalog.model.values import Factor, Floor
>>> class Backups:
...     '''Each backup needs the versions from its time on.'''
...     def __init__(self):
...         self.times = []
...     def need(self, view):
...         return Floor(Factor.PIN, min(self.times)) if self.times else None
>>> check_need_source(Backups, hold=lambda backups, time: backups.times.append(time),
...                   release=lambda backups, time: backups.times.remove(time), max_examples=20)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from compactlib.catalog.errors import TimeBeforeHistory
from compactlib.catalog.model.timestamp import Timestamp, show
from compactlib.catalog.model.values import Assignments, Floor, Need, NodeId, NodeReport, Topology, Unavailable
from compactlib.catalog.plan.decision import CatalogView, decide
from compactlib.catalog.plan.verdict import Compact
from compactlib.catalog.schema.versions import RetainedVersions
from compactlib.catalog.sense.needs import NeedSource
from compactlib.errors import CompactlibError, MissingDependency
from compactlib.testing.policies.need_strategies import catalog_histories

try:
    from hypothesis import given, note, strategies as st
except ImportError:
    raise MissingDependency(package="hypothesis", extra="testing", purpose="trying a source on random needs") from None

from compactlib.testing.kit.examples import as_always

SourceT = TypeVar("SourceT", bound=NeedSource)

_LATER = 1_000_000 << 16
"""Behind all versions of a random history."""


def check_need_source(make_source: Callable[[], SourceT], *, hold: Callable[[SourceT, Timestamp], object],
                      release: Callable[[SourceT, Timestamp], object], max_examples: int = 100) -> None:
    """Try a source on random histories of a catalog, with needs that begin and end in any order.

    It must need nothing as long as nothing is held; name the lowest time held, as a `Floor` with that time; answer the
    same again; let go of what was released; and a round that believes it must never cut what is held, nor be held back
    by more than that.

    Args:
        make_source: makes a source that holds nothing.
        hold: begins to need the catalog as it was at a time. The same time may be held twice.
        release: ends one need of that time.
        max_examples: how many histories.

    Raises:
        AssertionError: it does not; the message says which rule, why there is one, and what to do, and Hypothesis shows
            the fewest needs with which it fails.
    """
    @as_always(max_examples)
    @given(catalog_histories(), st.lists(st.integers(0, 5), max_size=12), st.data())
    def needs_are_told(view: RetainedVersions, steps: list[int], data: st.DataObject) -> None:
        source, held = make_source(), list[Timestamp]()
        _check_answer(source, view, held)
        for step in steps:
            if held and step == 5:
                time = held.pop(data.draw(st.integers(0, len(held) - 1), label="which need ends"))
                release(source, time)
            else:
                version = data.draw(st.integers(view.earliest, view.latest), label="version needed")
                time = max(view.activation(version), 1)
                held.append(time)
                hold(source, time)
            _check_answer(source, view, held)
        for time in held:
            release(source, time)
        _check_answer(source, view, [])

    needs_are_told()


def _check_answer(source: NeedSource, view: RetainedVersions, held: Sequence[Timestamp]) -> None:
    name = type(source).__name__
    versions = view.earliest, view.latest
    found = _asked(source, view)
    note(f"{name} answers {found!r} while {[show(time) for time in held]} are needed")
    assert (view.earliest, view.latest) == versions, f"{name}: need() changed the history; it is lent, and read only"
    assert _asked(source, view) == found, (
        f"{name}: two equal questions got two answers, {found!r} and then another. need() is called in every round; it "
        f"looks, and changes nothing")
    if not held:
        assert not isinstance(found, Floor) or found.time > view.activation(view.latest), (
            f"{name}: nothing is needed any more, and it still answers {found!r}: history would be kept for ever. "
            f"Answer None, and forget what was released")
        return
    assert found is not None, (
        f"{name}: time {show(min(held))} is needed, and it answers None: the version would be cut away while "
        f"it is still read. Answer Floor(factor, the lowest time)")
    if isinstance(found, Unavailable):
        return
    _check_floor(name, found, view, min(held))


def _asked(source: NeedSource, view: RetainedVersions) -> Need | None:
    name = type(source).__name__
    try:
        found = source.need(view)
    except CompactlibError as error:
        raise AssertionError(f"{name}: need() raised {error!r}. A round would count it as not available, and hold; if "
                             f"that is meant, answer Unavailable(factor, why)") from error
    except Exception as error:
        raise AssertionError(f"{name}: need() raised {error!r}, which ends the round on this node, each time. Answer "
                             f"Unavailable(factor, why) when it is not known, None when nothing is needed") from error
    assert found is None or isinstance(found, Floor | Unavailable), (
        f"{name}: need() answered {found!r}; give a Floor, an Unavailable or None")
    return found


def _check_floor(name: str, found: Floor, view: RetainedVersions, lowest: Timestamp) -> None:
    needed = view.version_at(lowest)
    assert found.time <= lowest or _version(view, found.time) == needed, (
        f"{name}: time {show(lowest)} is needed, and it answers {show(found.time)}, which is later: version {needed} "
        f"would be cut away under a reader. The answer is the lowest time of all needs, not the latest")
    kept = _version(view, found.time)
    assert kept == needed, (
        f"{name}: time {show(lowest)} is needed, and it answers {show(found.time)}, far lower: versions from "
        f"{view.earliest} on are kept though only those from {needed} are needed. Is that the number of a version, or "
        f"a need that has ended? Answer with the activation of the version needed (view.activation)")
    report = NodeReport(node=NodeId("node"), floors=(found,), transactions_from=_LATER)
    decision = decide(CatalogView(reports=(report,), history=view, now=_LATER, low_watermark=_LATER,
                                  assignments=Assignments(), topology=Topology.of("node")))
    target = decision.target if isinstance(decision, Compact) else view.earliest
    assert target == needed, (
        f"{name}: with its answer {found!r} history would be cut to version {target}, and {needed} is needed: "
        f"{decision.explain()}")


def _version(view: RetainedVersions, time: Timestamp) -> int | None:
    try:
        return view.version_at(time)
    except TimeBeforeHistory:
        return None
