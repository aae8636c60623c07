# SPDX-License-Identifier: Apache-2.0
"""`CatalogPlan`: up to which version history is cut, why not further, and what must still hold when it is."""

from __future__ import annotations

from typing import Any

import attrs

from compactlib.catalog.errors import UnsafeCompaction
from compactlib.catalog.log import keys
from compactlib.catalog.log.update_log import UpdateLog, earliest_mark, term_mark
from compactlib.catalog.model.timestamp import Timestamp, to_seconds
from compactlib.catalog.model.values import Assignments, NodeReport, Topology
from compactlib.catalog.plan.decision import CatalogView, decide
from compactlib.catalog.plan.policy import CatalogPolicy, Cut
from compactlib.catalog.plan.verdict import Compact, Explanation
from compactlib.errors import InvalidInput
from compactlib.kv import Condition
from compactlib.report import PolicyRecord, Printed

UNKNOWN_CLUSTER = ("0 nodes are known, so what is needed is unknown; give view() the topology and the reports, or "
                   "connect() a source")


@attrs.frozen(kw_only=True, repr=False)
class CatalogPlan(Printed):
    """What a compaction of the catalog would do, as it was safe when the view was taken.

    Attributes:
        why: why this is done; of an empty plan what holds the history, and what would end that.
        target: the version that becomes the earliest one; `None`: nothing is cut.
        earliest: the earliest version retained when it was planned.
        latest: the latest one.
        commits: commit times of the latest version and of the target, by which the plan's catalog is known.
        policy: the name of the policy that chose.
        explanation: everything that keeps the target from being higher, the strongest first.
        bytes_to_copy: keys and records that are put: the snapshot, its pieces, the log's marks.
        bytes_freed: by how much less the store holds afterwards; may be negative, as a snapshot is larger than the few
            updates that it replaces. What the store itself adds to a record is not counted.
        is_exact: whether both hold to the byte as long as nothing else changes the log; those of a snapshot that has to
            be split are off by a few bytes.
        reports, topology, assignments, low_watermark: what the nodes said, checked once more before the cut.
        term, conditions: what must still hold in the step that cuts.
    """

    why: str
    target: int | None
    earliest: int
    latest: int
    commits: tuple[tuple[int, Timestamp], ...]
    policy: PolicyRecord
    explanation: Explanation
    bytes_to_copy: int | None = 0
    bytes_freed: int | None = 0
    is_exact: bool = True
    reports: tuple[NodeReport, ...] = ()
    topology: Topology = attrs.field(factory=lambda: Topology(frozenset()))
    assignments: Assignments = attrs.field(factory=Assignments)
    low_watermark: Timestamp | None = None
    term: int | None = None
    conditions: tuple[Condition, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is cut."""
        return self.target is None

    @property
    def bytes_needed(self) -> int | None:
        """As much as is put: everything is written before anything is deleted."""
        return self.bytes_to_copy

    @property
    def bytes_available(self) -> int | None:
        """`None`: a key-value store does not say."""
        return None

    def explain(self) -> str:
        """Some lines for an operator: what is cut, and everything that keeps the target from being higher."""
        return "\n".join([self._summary(), *(f"  {limit}" for limit in self.explanation.limits)])

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row a limit, each with the target; one row at least."""
        head = {"target": self.target, "earliest": self.earliest}
        return [{**head, **row} for row in self.explanation.to_dicts()] or [{**head, "why": self.why}]

    def _summary(self) -> str:
        if self.target is None:
            return f"nothing is cut (versions {self.earliest} to {self.latest} are retained): {self.why}"
        return f"history is cut to version {self.target} (of {self.earliest} to {self.latest}): {self.why}"


def may_cut(view: CatalogView) -> bool:
    """Whether a policy is to be asked: whether anything can be cut at all.

    Raises:
        DuplicateReport, AssignmentsMissing: as `decide`.
    """
    return bool(view.topology.nodes) and isinstance(view.decision, Compact)


def chosen(view: CatalogView, policy: CatalogPolicy) -> Cut:
    """What the policy chooses.

    Raises:
        UnsafeCompaction: it chose a version that the decision does not allow.
        InvalidInput: what it answered is no `Cut`, or names a version that is not retained.
        BaseException: whatever the policy raises.
    """
    choice: object = policy.choose(view, to_seconds(view.now))
    if not isinstance(choice, Cut):
        raise InvalidInput(f"the policy {policy.name} chose {choice!r:.100}; a policy answers a Cut")
    if choice.target is None:
        return choice
    if type(choice.target) is not int or not view.history.has(choice.target):
        raise InvalidInput(f"the policy {policy.name} chose {choice.target!r:.100}; versions {view.history.earliest} "
                           f"to {view.history.latest} are retained")
    decision = view.decision
    if not isinstance(decision, Compact) or choice.target > decision.target:
        raise UnsafeCompaction(rule="a policy chooses at or below what the decision allows", target=choice.target,
                               detail=f"the policy {policy.name} chose version {choice.target}; {decision.explain()}")
    return choice


def plan_of(view: CatalogView, policy: CatalogPolicy, choice: Cut | None, log: UpdateLog) -> CatalogPlan:
    """The plan of what was chosen; the log says how a snapshot is stored, and is not read.

    Args:
        view: what is needed.
        policy: the name of the policy that chose.
        choice: what; `None` if nothing can be cut, whatever a policy says.
        log: is to be cut.

    Raises:
        RecordTooLarge: the snapshot would be refused.
        AssignmentsMissing: as `decide`.
    """
    history = view.history
    latest = history.catalog(history.latest)
    empty = CatalogPlan(
        why=UNKNOWN_CLUSTER, target=None, earliest=history.earliest, latest=history.latest,
        commits=((latest.version, latest.commit),), policy=PolicyRecord.of(policy), reports=view.reports,
        topology=view.topology, assignments=view.assignments, low_watermark=view.low_watermark, term=view.term,
        conditions=view.conditions,
        explanation=Explanation(earliest=history.earliest, latest=history.latest, wanted=history.earliest, bound=None))
    if not view.topology.nodes:
        return empty
    decision = view.decision
    empty = attrs.evolve(empty, explanation=decision.why)
    if not isinstance(decision, Compact):
        return attrs.evolve(empty, why=decision.reason())
    if choice is None or choice.target is None:
        return attrs.evolve(empty, why="" if choice is None else choice.why)
    if view.sizes is not None and choice.target <= view.sizes.earliest:
        return attrs.evolve(empty, why=f"the log begins at version {view.sizes.earliest}, and nothing lies below")
    found = decision if choice.target == decision.target else decide(view, at_most=choice.target)
    # What forbids the policy's own choice may allow more than what it forbids above.
    known = {limit.factor for limit in decision.why.limits}
    more = tuple(limit for limit in found.why.limits if limit.factor not in known)
    empty = attrs.evolve(empty, explanation=attrs.evolve(decision.why, limits=(*decision.why.limits, *more)))
    if not isinstance(found, Compact):
        return attrs.evolve(empty, why=f"the policy {policy.name} chose version {choice.target}, and neither that nor "
                                       f"a lower one can be the earliest: {found.reason()}")
    return attrs.evolve(
        empty, target=found.target, why=choice.why, **_forecast(view, found.target, log),
        commits=(*empty.commits, (found.target, history.catalog(found.target).commit)))


def _forecast(view: CatalogView, target: int, log: UpdateLog) -> dict[str, Any]:
    snapshot, is_exact = log.snapshot_bytes(view.history.catalog(target))
    written = snapshot + len(keys.EARLIEST) + len(earliest_mark(target))
    if view.sizes is None:
        return {"bytes_to_copy": written, "bytes_freed": None, "is_exact": False}
    freed = view.sizes.up_to(target) + view.sizes.earliest_mark
    if view.term is not None and view.term != view.sizes.term:
        written += len(keys.TERM) + len(term_mark(view.term))
        freed += view.sizes.term_mark
    return {"bytes_to_copy": written, "bytes_freed": freed - written, "is_exact": is_exact}


@attrs.frozen(kw_only=True)
class CutReport(Printed):
    """History was cut.

    Attributes:
        earliest: the version that is the earliest one now.
        before: the earliest one when it was planned.
        bytes_written: keys and records that were put: the snapshot, its pieces, the log's marks.
        bytes_freed: by how much less the store holds, once `reclaim` has come to its end; `None` if the plan does not
            say what was there.
        deleted: keys that were deleted; fewer than there are to delete if `reclaim` has not come to its end.
    """

    earliest: int
    before: int
    bytes_written: int
    bytes_freed: int | None = None
    deleted: int
