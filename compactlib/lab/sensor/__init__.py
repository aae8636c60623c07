# SPDX-License-Identifier: Apache-2.0
"""The staging area's sensor, replayed in memory."""
