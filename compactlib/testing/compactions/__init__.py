# SPDX-License-Identifier: Apache-2.0
"""The conformance kit of `Compaction`: tests that any store which can be compacted inherits."""
