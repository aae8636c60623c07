# SPDX-License-Identifier: Apache-2.0
"""What is compacted: pure functions of a view and a policy."""
