"""Changing a disk: the files that callers pass in, the lock of a folder, checksums and framing of stored records."""

from compactlib._lazy import offer

offer(__name__)
