# SPDX-License-Identifier: Apache-2.0
"""What both sides of a transfer are made of: the shape of a side, its report, and how a transfer is refused."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

import attrs

from compactlib.errors import CompactlibError, Unsupported
from compactlib.raftlog.errors import FrameDamaged, RefusalReason, TransferBroken, TransferRefused
from compactlib.raftlog.messages import Message, Refuse, decode, encode
from compactlib.raftlog.model.snapshot_meta import SnapshotManifest

_MessageT = TypeVar("_MessageT", bound=Message)
_T = TypeVar("_T")

Talk: TypeAlias = Generator[bytes, "bytes | None", _T]
"""One side of a transfer. It yields a frame to be written, and is given one that has arrived meanwhile, or `None`; or
it yields nothing (`b""`), and is given the next frame. `TransferBroken` is thrown into it when the stream ends."""


@attrs.frozen(kw_only=True)
class TransferReport:
    """What a transfer has brought: the snapshot is in force at the follower, durably.

    Attributes:
        manifest: of the snapshot.
        entries: live entries that were sent.
        resumed_at: bytes of the state that an earlier stream had brought already.
    """

    manifest: SnapshotManifest
    entries: int
    resumed_at: int

    @property
    def index(self) -> int:
        """The snapshot's index."""
        return self.manifest.index


def expected(frame: bytes | None, kind: type[_MessageT], *, index: int) -> _MessageT:
    """The message in a frame, if it is of the only kind that fits here.

    Args:
        frame: that was read.
        kind: of the message.
        index: the snapshot's.

    Raises:
        TransferRefused: the other side ends the transfer instead.
        FrameDamaged: the frame is damaged, or is out of its order.
        Unsupported: another release sent it.
    """
    assert frame is not None, "a side that waits is given a frame"
    message = decode(frame)
    if isinstance(message, kind):
        return message
    if isinstance(message, Refuse):
        raise TransferRefused(reason=message.reason, detail=message.detail, index=index, term=message.term,
                              last_applied=message.last_applied, by_peer=True)
    raise FrameDamaged(path="<stream>", offset=0, expected=kind.__name__, found=type(message).__name__)


def refusing(error: CompactlibError, *, term: int, last_applied: int) -> Talk[None]:
    """Send the other side the reason of an error that ends the transfer here, if it can still be sent."""
    if isinstance(error, TransferBroken) or (isinstance(error, TransferRefused) and error.by_peer):
        return
    if isinstance(error, TransferRefused):
        reason, detail = error.reason, error.detail
    else:
        reason = RefusalReason.UNSUPPORTED if isinstance(error, Unsupported) else RefusalReason.FAILED
        detail = str(error)
    try:
        yield encode(Refuse(reason, term, last_applied, detail))
    except TransferBroken:
        return
