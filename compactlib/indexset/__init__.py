# SPDX-License-Identifier: Apache-2.0
"""Sets of indexes: immutable, in runs, with their algebra and their stored form."""

from compactlib._lazy import offer

offer(__name__)
