# SPDX-License-Identifier: Apache-2.0
"""How a worker's polls reach the scheduler, and how tokens are sealed on the way.

The scheduler's state machine trusts what it is given. `SealedPolls` stands in front of it where workers may not be
trusted: it seals the token of every assignment, and answers an update whose seal is not genuine by itself.
"""

from __future__ import annotations

from typing import Protocol

import attrs

from compactlib.scheduler.fences.token import TokenSealer
from compactlib.scheduler.model.poll import Assignment, PollRequest, PollResponse, StatusAnswer, StatusUpdate, Verdict


class Transport(Protocol):
    """Carries one poll to the scheduler and the answer back. Any thread may call it; a worker does so one at a time."""

    def poll(self, request: PollRequest) -> PollResponse:
        """Send the request, and wait for the answer, for a limited time.

        Raises:
            Exception: there is no answer. The request may have been carried out or not, now or later, once or more
                often; the worker sends what is still true with its next poll.
        """


class SealedPolls:
    """A `Transport` in front of another one, at the scheduler's side, that seals tokens and checks the seals.

    An update without a genuine seal never reaches the scheduler; it is answered `FORGED_TOKEN`, in its place among the
    answers. Confirmations of deletions carry no token, and are passed on.

    Args:
        inner: whatever answers polls, for example a service.
        sealer: has the keys.
    """

    def __init__(self, inner: Transport, sealer: TokenSealer) -> None:
        self._inner = inner
        self._sealer = sealer

    def poll(self, request: PollRequest) -> PollResponse:
        """See `Transport.poll`."""
        genuine = [self._is_genuine(update) for update in request.status_updates]
        kept = tuple(attrs.evolve(update, seal="")
                     for update, good in zip(request.status_updates, genuine, strict=True) if good)
        response = self._inner.poll(attrs.evolve(request, status_updates=kept))
        answers = iter(response.answers)
        merged = tuple(next(answers) if good else _forged(update)
                       for update, good in zip(request.status_updates, genuine, strict=True))
        return attrs.evolve(response, answers=merged, assignments=tuple(map(self._sealed, response.assignments)))

    def _is_genuine(self, update: StatusUpdate) -> bool:
        return self._sealer.is_genuine(update.name, update.token, update.seal)

    def _sealed(self, assignment: Assignment) -> Assignment:
        return attrs.evolve(assignment, seal=self._sealer.seal(assignment.name, assignment.token))

    def __repr__(self) -> str:
        return f"SealedPolls({self._inner!r}, {self._sealer!r})"


def _forged(update: StatusUpdate) -> StatusAnswer:
    return StatusAnswer(update.name, Verdict.FORGED_TOKEN,
                        detail=f"the seal was not made for token {update.token} of this job; send back the seal that "
                               f"came with the assignment")
