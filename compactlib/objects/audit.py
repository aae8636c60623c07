# SPDX-License-Identifier: Apache-2.0
"""What every object store can check of itself: that it lists what it may hold, in order."""

from __future__ import annotations

import math
from collections.abc import Iterable

from compactlib.errors import AuditFailed
from compactlib.objects.errors import BadKey
from compactlib.objects.keys import check_key
from compactlib.objects.store import ObjectInfo


def audit_listing(store: str, listed: Iterable[ObjectInfo]) -> None:
    """Pass a complete listing: keys that may be, each once and ascending, with sizes and times that can be.

    Args:
        store: what the store is called in messages.
        listed: what it lists, from the first key to the last.

    Raises:
        AuditFailed: it is not so; the message names the object.
    """
    before = ""
    for info in listed:
        try:
            check_key(info.key)
        except BadKey as error:
            raise AuditFailed(f"{store} holds {info.key!r}, which cannot have been created here: {error}; "
                              f"move it elsewhere") from error
        if info.key <= before:
            raise AuditFailed(f"{store} lists {info.key!r} after {before!r}; keys ascend")
        if info.size_bytes < 0 or not math.isfinite(info.modified_at):
            raise AuditFailed(f"{store} lists {info.key!r} with {info.size_bytes} bytes, created at "
                              f"{info.modified_at}, which cannot be")
        before = info.key
