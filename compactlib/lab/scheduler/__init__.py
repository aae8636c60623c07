# SPDX-License-Identifier: Apache-2.0
"""The scheduler with its workers, replayed in simulated time."""
