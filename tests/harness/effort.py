# SPDX-License-Identifier: Apache-2.0
"""The size of a test: small on each change, full in `make soak`."""

from __future__ import annotations

import attrs


@attrs.frozen
class Effort:
    """The fixture `effort`: a test that uses it runs small, and a second time, in full, in `make soak`.

    Attributes:
        full: whether this run is the full one.
    """

    full: bool

    def __call__(self, little: int, full: int) -> int:
        """Return the number for this run."""
        return full if self.full else little
