# SPDX-License-Identifier: Apache-2.0
"""Takes everything that may be taken, whatever it costs; with an option to leave wholly valid segments alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, TypeAlias

import attrs

from compactlib._arguments import require_one_of
from compactlib.blobstore.view import BlobChoice, BlobView, SegmentView, fraction, shut_by_use, shut_gate

SkipValid: TypeAlias = Literal["none", "ends", "all"]


@attrs.frozen(kw_only=True)
class CompactAll:
    """Every eligible segment, regardless of what that brings.

    Simple and expensive: each round copies everything valid. With `skip_valid` it does not copy what would come out
    as it went in, and comes to rest once nothing is dead.

    Attributes:
        min_used_fraction: how full the log has to be, 0.0 to 1.0; exactly as full is enough.
        skip_valid: wholly valid segments to leave out: `"none"`; at both `"ends"` of the range, so that what is taken
            stays one range; or `"all"` of them, wherever they lie.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    min_used_fraction: float = fraction(0.5)
    skip_valid: SkipValid = "none"

    name: ClassVar[str] = "compact_all"

    def __attrs_post_init__(self) -> None:
        require_one_of("skip_valid", self.skip_valid, SkipValid)

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        """See `BlobPolicy.choose`. O(segments)."""
        if shut := shut_by_use(view, self.min_used_fraction):
            return BlobChoice(why=shut)
        if shut := shut_gate(view):
            # A full round all the same: a store may close its newest segment for it.
            return BlobChoice(why=shut, kind="full")
        eligible = view.eligible
        taken = self._without_valid(eligible)
        if not taken:
            return BlobChoice(kind="full", why=f"each of the {len(eligible)} eligible segments is wholly valid, which "
                                           f"skip_valid={self.skip_valid!r} leaves out; wait until something is dead")
        left = len(eligible) - len(taken)
        told = f"; {left} wholly valid left out" if left else ""
        return BlobChoice(taken, kind="full", why=f"all {len(taken)} eligible segments{told}")

    def _without_valid(self, eligible: Sequence[SegmentView]) -> Sequence[SegmentView]:
        if self.skip_valid == "none":
            return eligible
        dirty = [place for place, segment in enumerate(eligible) if segment.valid_bytes < segment.used_bytes
                 or not segment.used_bytes]
        if not dirty:
            return ()
        if self.skip_valid == "ends":
            return eligible[dirty[0]:dirty[-1] + 1]
        return [eligible[place] for place in dirty]
