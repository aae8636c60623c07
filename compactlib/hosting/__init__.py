# SPDX-License-Identifier: Apache-2.0
"""Ready hosts that join the packages: a durable command log, the scheduler on top of it, a Raft library."""

from compactlib._lazy import offer

offer(__name__)
