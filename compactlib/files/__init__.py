# SPDX-License-Identifier: Apache-2.0
"""Durable changes of a disk: the `Files` protocol, the lock of a folder, checksums and framing of stored records."""

from compactlib._lazy import offer

offer(__name__)
