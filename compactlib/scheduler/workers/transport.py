# SPDX-License-Identifier: Apache-2.0
"""How a worker's polls reach the scheduler."""

from __future__ import annotations

from typing import Protocol

from compactlib.scheduler.model.poll import PollRequest, PollResponse


class Transport(Protocol):
    """Carries one poll to the scheduler and the answer back. Any thread may call it; a worker does so one at a time."""

    def poll(self, request: PollRequest) -> PollResponse:
        """Send the request, and wait for the answer, for a limited time.

        Raises:
            Exception: there is no answer. The request may have been carried out or not, now or later, once or more
                often; the worker sends what is still true with its next poll.
        """
