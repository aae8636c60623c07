# SPDX-License-Identifier: Apache-2.0
"""The decision: up to which version the catalog may be compacted, and why not further."""
