# SPDX-License-Identifier: Apache-2.0
"""What is compacted: pure functions of a view, a policy and limits."""
