# SPDX-License-Identifier: Apache-2.0
"""compactlib: embeddable compaction primitives.

Each design is a package of its own (`compactlib.raftlog`, ...) and is imported by name. This module offers the
version, the tree of exceptions and the outcomes, and loads nothing else.
"""

from compactlib._lazy import offer

__version__ = "0.1.0"
"""The release, `major.minor.patch`; CHANGELOG.md says what each part promises."""

offer(__name__)
