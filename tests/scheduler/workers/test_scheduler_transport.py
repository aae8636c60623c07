# SPDX-License-Identifier: Apache-2.0
"""Sealed polls: what comes through, what is answered at the door, and in which order."""

from __future__ import annotations

import attrs
import pytest

from compactlib.scheduler import JobStatus, PollRequest, PollResponse, SealedPolls, StatusUpdate
from compactlib.scheduler.fences.token import TokenSealer
from compactlib.scheduler.model.poll import Assignment, StatusAnswer, Verdict

SEALER = TokenSealer({"k": b"0123456789abcdef"})


class Inner:
    """Accepts everything that reaches it."""

    def __init__(self) -> None:
        self.seen: list[PollRequest] = []

    def poll(self, request: PollRequest) -> PollResponse:
        self.seen.append(request)
        return PollResponse(answers=tuple(StatusAnswer(each.name, Verdict.ACCEPTED) for each in request.status_updates),
                            assignments=(Assignment("new", 7, 15.0),), now=3.0)


def update(name: str, token: int, seal: str) -> StatusUpdate:
    return StatusUpdate(name, token, JobStatus.IN_PROGRESS, seal=seal)


def test_a_seal_that_was_given_is_taken_back() -> None:
    inner = Inner()
    door = SealedPolls(inner, SEALER)
    (assignment,) = door.poll(PollRequest(job_capacity=1)).assignments
    assert SEALER.is_genuine("new", 7, assignment.seal)
    response = door.poll(PollRequest((update("new", 7, assignment.seal),), 2, ("deleted",)))
    assert response.answers == (StatusAnswer("new", Verdict.ACCEPTED),)
    assert inner.seen[1] == PollRequest((update("new", 7, ""),), 2, ("deleted",))
    assert response.now == 3.0


def test_forged_updates_are_answered_in_their_places_and_go_no_further() -> None:
    inner, good = Inner(), SEALER.seal("b", 4)
    response = SealedPolls(inner, SEALER).poll(PollRequest((
        update("a", 4, good), update("b", 4, good), update("b", 1 << 70, good), update("b", -1, good),
        update("c", 5, ""), update("b", 5, good))))
    assert [(answer.name, answer.verdict) for answer in response.answers] == [
        ("a", Verdict.FORGED_TOKEN), ("b", Verdict.ACCEPTED), ("b", Verdict.FORGED_TOKEN), ("b", Verdict.FORGED_TOKEN),
        ("c", Verdict.FORGED_TOKEN), ("b", Verdict.FORGED_TOKEN)]
    assert [each.name for each in inner.seen[0].status_updates] == ["b"]


def test_an_error_of_the_scheduler_comes_through() -> None:
    class Broken:
        def poll(self, request: PollRequest) -> PollResponse:
            raise ConnectionError("no leader")

    with pytest.raises(ConnectionError):
        SealedPolls(Broken(), SEALER).poll(PollRequest())


def test_it_shows_no_key() -> None:
    assert "0123456789" not in repr(SealedPolls(Inner(), SEALER))
    assert attrs.fields_dict(Assignment)["seal"].default == ""
