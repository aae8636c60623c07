# SPDX-License-Identifier: Apache-2.0
"""What a node still needs of the catalog's history: transactions, published times, rebalance, low watermark, pins."""
