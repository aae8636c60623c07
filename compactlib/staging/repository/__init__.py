# SPDX-License-Identifier: Apache-2.0
"""The repository that a host opens, its audit and verification, and its background worker."""
