# SPDX-License-Identifier: Apache-2.0
"""What is still needed: by transactions, rebalances, index builds, pins, published versions."""
