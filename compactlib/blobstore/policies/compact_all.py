"""Takes everything that may be taken, whatever it costs; with an option to leave wholly valid segments alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, TypeAlias

import attrs

from compactlib.blobstore.plan import CompactionPlan, plan_for
from compactlib.blobstore.policy import GatedPolicy, SegmentView, StoreView
from compactlib.errors import InvalidInput

SkipValid: TypeAlias = Literal["none", "ends", "all"]


@attrs.frozen(kw_only=True)
class CompactAll(GatedPolicy):
    """Every eligible segment, regardless of what that brings (notes 1.6).

    Simple and expensive: each round copies everything valid. With `skip_valid` it does not copy what would come out
    as it went in, and comes to rest once nothing is dead.

    Attributes:
        min_used_fraction: see `GatedPolicy`.
        skip_valid: wholly valid segments to leave out: `"none"`; at both `"ends"` of the range, so that what is taken
            stays one range; or `"all"` of them, wherever they lie.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    skip_valid: SkipValid = "none"

    name: ClassVar[str] = "compact_all"

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.skip_valid not in ("none", "ends", "all"):
            raise InvalidInput(f"skip_valid is {self.skip_valid!r}; it must be 'none', 'ends' or 'all'")

    def choose(self, view: StoreView, now: float) -> CompactionPlan | None:
        """See `GatedPolicy.choose`. O(segments)."""
        eligible = view.eligible
        taken = self._without_valid(eligible)
        if not taken:
            return None
        left = len(eligible) - len(taken)
        told = f"; {left} wholly valid left out" if left else ""
        return plan_for(view, self, taken, now=now, kind="full", reference_time=now - view.retention_seconds,
                        reason=f"all {len(taken)} eligible segments{told}")

    def nothing_found(self, view: StoreView, now: float) -> str:
        """See `GatedPolicy.nothing_found`."""
        return f"each of the {len(view.eligible)} eligible segments is wholly valid"

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
