# SPDX-License-Identifier: Apache-2.0
"""The committed layer: immutable ranges and metaranges in an object store."""
