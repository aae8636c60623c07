# SPDX-License-Identifier: Apache-2.0
"""etcd as a key-value store."""
