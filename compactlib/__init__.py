# SPDX-License-Identifier: Apache-2.0
"""compactlib: embeddable compaction primitives.

Each design is a package of its own (`compactlib.raftlog`, ...) and is imported by name; its exceptions are in
`compactlib.errors` and in the package. This module loads nothing.
"""

__version__ = "0.1.0"
"""The release, `major.minor.patch`; CHANGELOG.md says what each part promises."""
