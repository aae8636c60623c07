# SPDX-License-Identifier: Apache-2.0
"""The errors of the catalog: leaves under the tree of `compactlib.errors`."""

from __future__ import annotations

from compactlib.errors import (
    Busy,
    CompactlibError,
    Conflict,
    CorruptData,
    InvalidInput,
    NotFound,
    Stale,
    Unsupported,
)
from compactlib.files.record_frame import other_version


class CatalogVersionNotFound(NotFound):
    """No catalog of this version is retained. Ask for a version between `earliest` and `latest`."""

    def __init__(self, *, version: int, earliest: int, latest: int) -> None:
        super().__init__(f"catalog version {version} is not retained; versions {earliest} to {latest} are")
        self.version = version
        self.earliest = earliest
        self.latest = latest


class TimeBeforeHistory(NotFound):
    """The time lies before the earliest retained version became active. Ask for `earliest_time` or later."""

    def __init__(self, *, time: int, earliest: int, earliest_time: int) -> None:
        super().__init__(f"no catalog version is known for time {time}: history begins with version {earliest}, active "
                         f"from {earliest_time}")
        self.time = time
        self.earliest = earliest
        self.earliest_time = earliest_time


class CommandRefused(InvalidInput):
    """A command does not fit the catalog it was checked against; the whole batch changed nothing. Correct it.

    Attributes:
        command: the command, as text.
        reason: what is wrong.
        version: the catalog version it was checked against.
    """

    def __init__(self, *, command: str, reason: str, version: int) -> None:
        super().__init__(f"{command} does not fit catalog version {version}: {reason}")
        self.command = command
        self.reason = reason
        self.version = version


class ObjectNotFound(NotFound):
    """A catalog version holds no schema, table, zone or index of this name or id.

    Attributes:
        kind: `"schema"`, `"table"`, `"zone"` or `"index"`.
        key: the name or id asked for, as text.
        version: the catalog version that was asked.
    """

    def __init__(self, *, kind: str, key: str, version: int) -> None:
        super().__init__(f"catalog version {version} has no {kind} {key}")
        self.kind = kind
        self.key = key
        self.version = version


class RetriesExhausted(Conflict):
    """Every attempt to append lost against another writer. Nothing was changed; call again when there is less load."""

    def __init__(self, *, attempts: int, version: int) -> None:
        super().__init__(f"{attempts} attempts to append to the catalog's log lost against other writers, the last at "
                         f"version {version}; call again")
        self.attempts = attempts
        self.version = version


class ActivationNotAscending(Conflict):
    """An update would become active no later than the one before it; it was not applied. Append with a later time."""

    def __init__(self, *, version: int, activation: int, previous: int) -> None:
        super().__init__(f"catalog version {version} would become active at {activation}, but the version before it "
                         f"does at {previous}; activation times ascend strictly")
        self.version = version
        self.activation = activation
        self.previous = previous


class RecordDamaged(CorruptData):
    """A record of the update log is not what was written. Restore the key from a replica or a backup.

    Attributes:
        key: the record's key; `path` is the same.
    """

    def __init__(self, *, key: str, offset: int, expected: str, found: str) -> None:
        super().__init__(path=key, offset=offset, expected=expected, found=found)
        self.key = key


class RecordMissing(CorruptData):
    """A record that must exist is not in the store: a hole in the log. Restore the key from a replica or a backup.

    Attributes:
        key: the missing key; `path` is the same.
        version: the catalog version that cannot be rebuilt without it.
    """

    def __init__(self, *, key: str, version: int, expected: str) -> None:
        super().__init__(path=key, offset=0, expected=expected, found="no such key")
        self.key = key
        self.version = version


class RecordTooNew(Unsupported):
    """A later release wrote this record. Upgrade before opening the catalog.

    Attributes:
        key: the record's key.
        found: its format version.
        supported: the highest that this release reads.
    """

    def __init__(self, *, key: str, found: int, supported: int) -> None:
        super().__init__(other_version(key, "catalog record", found, supported))
        self.key = key
        self.found = found
        self.supported = supported


class RecordTooLarge(InvalidInput):
    """A record would exceed what the log accepts; nothing was written. The message says which setting decides."""

    def __init__(self, *, key: str, size: int, limit: int, advice: str) -> None:
        super().__init__(f"the record for {key} would take {size} bytes; the limit is {limit}: {advice}")
        self.key = key
        self.size = size
        self.limit = limit


class SnapshotAboveLatest(InvalidInput):
    """A snapshot was asked for at a version that does not exist yet. Nothing was changed."""

    def __init__(self, *, version: int, latest: int) -> None:
        super().__init__(f"a snapshot at version {version} is asked for, but the latest version is {latest}")
        self.version = version
        self.latest = latest


class UnsafeCompaction(Conflict):
    """A rule that keeps needed versions readable would be broken; the snapshot was not written. Decide anew.

    Attributes:
        rule: which rule, in one sentence.
        target: the version up to which history was to be cut.
        detail: the numbers that break it.
    """

    def __init__(self, *, rule: str, target: int, detail: str) -> None:
        super().__init__(f"cutting history to version {target} is not safe: {rule}; {detail}")
        self.rule = rule
        self.target = target
        self.detail = detail


class CatalogMoved(Stale):
    """What a plan was made from has changed since: nothing was cut. Plan anew, and carry that plan out.

    Attributes:
        what: what has changed, in one sentence.
        target: the version up to which the plan cuts.
    """

    def __init__(self, *, what: str, target: int) -> None:
        super().__init__(f"the plan to cut history to version {target} is outdated: {what}; plan anew")
        self.what = what
        self.target = target


class EmptyTopology(InvalidInput):
    """A decision or a round was asked for over no nodes at all. Wait until the topology is known."""


class DuplicateReport(InvalidInput):
    """Two reports of one node were handed to one decision. Keep one report per node and round."""

    def __init__(self, *, node: str) -> None:
        super().__init__(f"node {node!r} reported twice in one round; a decision takes one report per node")
        self.node = node


class AssignmentsMissing(NotFound):
    """A live table's partition has no known assignments, so it is unknown which nodes must have reported it.

    Attributes:
        table: the table's id.
        zone: the id of its zone.
        partition: the lowest partition without assignments.
    """

    def __init__(self, *, table: int, zone: int, partition: int) -> None:
        super().__init__(f"no assignments are known for partition {partition} of zone {zone}, which table {table} "
                         f"needs; look them up again before deciding")
        self.table = table
        self.zone = zone
        self.partition = partition


class StaleTerm(Stale):
    """A message or a write comes from a coordinator of an earlier term. It was refused and changed nothing."""

    def __init__(self, *, term: int, current: int) -> None:
        super().__init__(f"term {term} is over: a coordinator of term {current} is known")
        self.term = term
        self.current = current


class StaleIncarnation(Stale):
    """A call names an earlier life of a partition or a node. It changed nothing; register anew.

    Attributes:
        what: the partition or node.
        incarnation: the one named.
        current: the one in force; 0 for none.
    """

    def __init__(self, *, what: str, incarnation: int, current: int) -> None:
        super().__init__(f"{what} was called with incarnation {incarnation}; {current or 'none'} is in force")
        self.what = what
        self.incarnation = incarnation
        self.current = current


class BelowLowWatermark(Stale):
    """A reader asks for a time whose data may be gone. Read at `low_watermark` or later."""

    def __init__(self, *, time: int, low_watermark: int) -> None:
        super().__init__(f"time {time} lies below the low watermark {low_watermark}; its data may be gone")
        self.time = time
        self.low_watermark = low_watermark


class ClockSkewExceeded(InvalidInput):
    """A timestamp runs ahead of the local clock by more than what is allowed; it was not taken over.

    Attributes:
        time: the timestamp.
        ahead_ms: by how many milliseconds it runs ahead.
        limit_ms: the allowed skew.
    """

    def __init__(self, *, time: int, ahead_ms: int, limit_ms: int, advice: str = "") -> None:
        super().__init__(f"timestamp {time} is {ahead_ms} ms ahead of the local clock; {limit_ms} ms are allowed: "
                         f"check the clocks" + (f"; {advice}" if advice else ""))
        self.time = time
        self.ahead_ms = ahead_ms
        self.limit_ms = limit_ms


class PinExpired(Stale):
    """The pin's time ran out, or it was released; what it held may be gone. Pin again, and check that it still is."""

    def __init__(self, *, owner: str) -> None:
        super().__init__(f"the pin of {owner!r} has expired or was released; pin again")
        self.owner = owner


class NotReady(Busy):
    """A version did not become ready, or active, before the deadline. Wait longer, or look at what holds it up."""

    def __init__(self, *, version: int, latest: int) -> None:
        super().__init__(f"catalog version {version} was not ready in time; {latest} is the latest that is")
        self.version = version
        self.latest = latest


class UnknownMessage(Unsupported):
    """A message of a type that this release does not know; it was skipped and its sender notified. Upgrade this node.

    Attributes:
        message_type: the number found.
        sender: the node that sent it, as far as known.
    """

    def __init__(self, *, message_type: int, sender: str = "") -> None:
        super().__init__(f"a message of unknown type {message_type}{_from(sender)}: this node is older than its "
                         f"sender; upgrade it")
        self.message_type = message_type
        self.sender = sender


class MessageTooNew(Unsupported):
    """A message in a format version that this release does not read; it was skipped and its sender notified.

    Attributes:
        message_type: its type.
        found: its format version.
        supported: the highest version read here; 0 is no version.
        sender: the node that sent it, as far as known.
    """

    def __init__(self, *, message_type: int, found: int, supported: int, sender: str = "") -> None:
        super().__init__(f"a message of type {message_type} in format version {found}{_from(sender)}; this release "
                         f"reads versions 1 to {supported}: run releases that share one")
        self.message_type = message_type
        self.found = found
        self.supported = supported
        self.sender = sender


class MessageDamaged(CorruptData):
    """Bytes that arrived are not a message as it was sent. The connection is given up; what was asked is asked again.

    Attributes:
        sender: the node that sent it, as far as known; `path` names the connection.
    """

    def __init__(self, *, sender: str, offset: int, expected: str, found: str) -> None:
        super().__init__(path=f"a message{_from(sender)}", offset=offset, expected=expected, found=found)
        self.sender = sender


class MessageTooLarge(InvalidInput):
    """A message exceeds the limit of its reader; it was not sent, or its connection was closed. Raise both limits."""

    def __init__(self, *, size: int, limit: int, sender: str = "") -> None:
        super().__init__(f"a message{_from(sender)} takes {size} bytes; the limit is {limit}: raise max_message_bytes "
                         f"on both sides")
        self.size = size
        self.limit = limit
        self.sender = sender


class WrongCluster(InvalidInput):
    """A node of another cluster, or of another name, answered at this address. Correct the addresses."""

    def __init__(self, *, expected: str, found: str, address: str) -> None:
        super().__init__(f"{address} belongs to {found}, not to {expected}; correct the addresses")
        self.expected = expected
        self.found = found
        self.address = address


class TwoCoordinators(Conflict):
    """Two nodes act as the coordinator of one term, which an election must prevent. The second was refused."""

    def __init__(self, *, term: int, known: str, claims: str) -> None:
        super().__init__(f"{known!r} is the coordinator of term {term}, and {claims!r} claims to be; an election must "
                         f"give each term to one node: check what calls elected()")
        self.term = term
        self.known = known
        self.claims = claims


class DeadlinePassed(CompactlibError):
    """A wait came to its end. What was waited for may still happen, but this round goes on without it.

    Attributes:
        wait: what was waited for.
        seconds: for how long.
    """

    def __init__(self, *, wait: str, seconds: float) -> None:
        super().__init__(f"{wait} took longer than {seconds} s; the next round tries again")
        self.wait = wait
        self.seconds = seconds


class ReportsMissing(Busy):
    """Not every node of the topology has reported, so the oldest transactions are unknown.

    Attributes:
        nodes: the names of those that did not, with the reason, sorted.
    """

    def __init__(self, *, nodes: tuple[str, ...]) -> None:
        super().__init__(f"no report from {len(nodes)} nodes: {'; '.join(nodes[:8])}"
                         + (f"; and {len(nodes) - 8} more" if len(nodes) > 8 else "") + "; the next round asks again")
        self.nodes = nodes


class NotInTopology(Stale):
    """The coordinator's own life is not in the topology that it was given. Wait for the topology that has it."""

    def __init__(self, *, node: str, epoch: int) -> None:
        super().__init__(f"{node} is not in the topology of epoch {epoch}, whose coordinator it is; a newer topology "
                         f"starts the next round")
        self.node = node
        self.epoch = epoch


class HostFailed(CompactlibError):
    """A call of the host ended in an error that is not the library's own. The next round calls again.

    Attributes:
        call: what was asked of the host.
        kind: the class name of its error.
        detail: its message.
    """

    def __init__(self, *, call: str, kind: str, detail: str) -> None:
        super().__init__(f"the host's {call} ended in {kind}: {detail}; the next round calls it again")
        self.call = call
        self.kind = kind
        self.detail = detail


def _from(sender: str) -> str:
    return f" from {sender}" if sender else ""
