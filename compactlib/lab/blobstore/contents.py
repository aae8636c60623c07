# SPDX-License-Identifier: Apache-2.0
"""What a log holds, as its placement is told."""

from __future__ import annotations

import attrs


@attrs.define
class Contents:
    """What a log holds.

    Attributes:
        bytes: of all its records.
        dead_bytes: of that, what is dead in segments that are closed.
        record_bytes: size of a record; where sizes differ, about the mean.
    """

    bytes: float = 0
    dead_bytes: int = 0
    record_bytes: float = 1
