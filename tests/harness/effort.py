# SPDX-License-Identifier: Apache-2.0
"""How hard a test looks: a little on each change, in full in `make soak`."""

from __future__ import annotations

import attrs


@attrs.frozen
class Effort:
    """What the fixture `effort` gives: a test that asks for it runs with little, and as a second one, in full, in soak.

    Attributes:
        full: whether this is the one in full.
    """

    full: bool

    def __call__(self, little: int, full: int) -> int:
        """The number for this run."""
        return full if self.full else little
