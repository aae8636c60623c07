# SPDX-License-Identifier: Apache-2.0
"""DynamoDB as a key-value store."""
