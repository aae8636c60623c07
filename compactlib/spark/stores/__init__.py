# SPDX-License-Identifier: Apache-2.0
"""Many stores at once: planned and compacted in one run, or as a stream."""
