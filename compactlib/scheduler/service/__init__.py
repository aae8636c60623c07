# SPDX-License-Identifier: Apache-2.0
"""What a host calls: the scheduler of one replica, and one that is kept in a key-value store."""
