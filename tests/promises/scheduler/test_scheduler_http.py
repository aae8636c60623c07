# SPDX-License-Identifier: Apache-2.0
"""A scheduler over HTTP, under uvicorn in a thread: authentication, answers, and the client's next address."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from typing import Any

import pytest

from compactlib.commandlog import KVLog, NoAnswer, NotLeader
from compactlib.errors import Busy, Closed, InvalidInput, StorageError
from compactlib.kv import MemoryStore
from compactlib.scheduler import (
    BlockMeta,
    CompactedBlocks,
    JobStatus,
    LevelConfig,
    PollRequest,
    PollResponse,
    Scheduler,
    SchedulerApplication,
    SchedulerClient,
    SchedulerConfig,
    StatusUpdate,
    Verdict,
)
from compactlib.scheduler.errors import TurnedAway
from tests.promises.scheduler.serving import served

SECRET = "a secret of more than sixteen characters"


def opened() -> Scheduler:
    return Scheduler(KVLog(MemoryStore()), None, SchedulerConfig(levels=(LevelConfig(max_blocks=2),)))


def blocks(*names: str) -> list[BlockMeta]:
    return [BlockMeta(id=name, tenant="größe", shard=1, level=0, min_time=0.1, max_time=2.5) for name in names]


def test_a_job_goes_over_http_and_back() -> None:
    scheduler = opened()
    with served(SchedulerApplication(scheduler)) as address, SchedulerClient([address]) as client:
        assert client.add_blocks(blocks("a", "b")).queued == ("a", "b")
        assert client.add_blocks(blocks("a")).duplicate == ("a",)
        client.poll(PollRequest(job_capacity=1))
        answer = client.poll(PollRequest(job_capacity=1))
        [plan], [lease] = answer.compaction_jobs, answer.assignments
        assert lease.blocks == tuple(blocks("a", "b"))
        output = BlockMeta(id="out", tenant="größe", shard=1, level=1)
        done = CompactedBlocks(tenant=plan.tenant, shard=1, source_blocks=plan.source_blocks, new_blocks=(output,))
        said = client.poll(PollRequest((StatusUpdate(plan.name, lease.token, JobStatus.SUCCESS, done),)))
        assert [each.verdict for each in said.answers] == [Verdict.ACCEPTED]
        assert client.status()["blocks"] == scheduler.status()["blocks"] == 1


def test_without_the_token_every_request_is_refused() -> None:
    with served(SchedulerApplication(opened(), tokens={"workers": SECRET})) as address:
        with SchedulerClient([address], token=SECRET) as client:
            assert client.status()["jobs"] == 0
        for token in (None, "another secret of that length"):
            with SchedulerClient([address], token=token) as client, pytest.raises(TurnedAway, match="no credentials"):
                client.status()
    with pytest.raises(InvalidInput, match="at least 16"):
        SchedulerApplication(opened(), tokens={"workers": "short"})


def asked(address: str, method: str, path: str, body: bytes = b"",
          headers: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)
    connection.request(method, path, body, {"content-type": "application/json", **(headers or {})})
    response = connection.getresponse()
    found: tuple[int, dict[str, Any]] = response.status, json.loads(response.read())
    connection.close()
    return found


def test_a_page_in_a_browser_is_not_answered() -> None:
    with served(SchedulerApplication(opened())) as address:
        assert asked(address, "GET", "/v1/status")[0] == 200
        for host in ("evil.example", "[", "localhost:port"):
            assert asked(address, "GET", "/v1/status", headers={"host": host})[0] == 403
        assert asked(address, "POST", "/v1/poll", b"{}", {"content-type": "text/plain"})[0] == 415
        assert asked(address, "GET", "/v1/status", headers={"x-forwarded-for": "10.0.0.1"})[0] == 403
    with served(SchedulerApplication(opened(), insecure=True)) as address:
        assert asked(address, "GET", "/v1/status", headers={"host": "evil.example"})[0] == 200


@pytest.mark.parametrize(("path", "body", "status", "message"), [
    ("/v1/poll", b"{", 400, "expected JSON"), ("/v1/poll", b'{"job_capacity":"1"}', 400, "job_capacity"),
    ("/v1/poll", b'{"job_capacity":-1}', 400, "room for 0 jobs or more"), ("/v1/nothing", b"{}", 404, "/v1/poll"),
    ("/v1/add_blocks", b'{"blocks":[{"id":"","tenant":"","shard":0,"level":0}]}', 400, "not a block id"),
    ("/v1/add_blocks", b'{"blocks":[{"id":"a","tenant":"","shard":0,"level":0,"min_time":1' + b"0" * 400 + b"}]}", 400,
     "blocks[0].min_time"), ("/v1/poll", b" " * 2000, 413, "max_body_bytes=1000")])
def test_an_invalid_request_is_refused_by_name(path: str, body: bytes, status: int, message: str) -> None:
    scheduler = opened()
    with served(SchedulerApplication(scheduler, max_body_bytes=1000)) as address:
        found, said = asked(address, "POST", path, body)
    assert found == status
    assert message in said["message"]
    assert said["changed"] == "no"
    assert scheduler.status()["index"] == 1


class Node(Scheduler):
    """A node with fixed answers."""

    def __init__(self, answer: Callable[[], PollResponse]) -> None:
        self.asked = 0
        self._answered = answer

    def poll(self, request: PollRequest) -> PollResponse:
        self.asked += 1
        return self._answered()


def raising(error: Exception) -> Callable[[], PollResponse]:
    def answer() -> PollResponse:
        raise error

    return answer


def test_the_client_follows_the_leader() -> None:
    leader, other = Node(PollResponse), Node(raising(NotLeader(leader="c:1")))
    with served(SchedulerApplication(leader)) as last:
        nodes = {"c:1": last}
        with served(SchedulerApplication(other, nodes=nodes)) as first, \
                served(SchedulerApplication(other, nodes=nodes)) as second, \
                SchedulerClient([first, second, last]) as client:
            for _ in range(3):
                assert client.poll(PollRequest()) == PollResponse()
    assert (leader.asked, other.asked) == (3, 1)


def test_a_poll_that_may_have_been_carried_out_is_not_repeated() -> None:
    node = Node(raising(StorageError(operation="write", path="/secret/place", errno=5)))
    with served(SchedulerApplication(node)) as address, SchedulerClient([address]) as client, \
            pytest.raises(NoAnswer) as caught:
        client.poll(PollRequest())
    assert node.asked == 1
    assert "/secret/place" not in str(caught.value)


def test_an_absent_node_is_skipped() -> None:
    with served(SchedulerApplication(Node(PollResponse))) as address:
        with SchedulerClient(["http://127.0.0.1:1", address]) as client:
            assert client.poll(PollRequest()) == PollResponse()
        with SchedulerClient(["http://127.0.0.1:1"], timeout_seconds=0.2) as client, pytest.raises(Busy):
            client.poll(PollRequest())
        with pytest.raises(Closed):
            client.poll(PollRequest())


def test_a_node_may_close_each_connection_after_its_answer() -> None:
    class Closes(SchedulerApplication):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def last(message: Any) -> None:
                if message["type"] == "http.response.start":
                    message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
                await send(message)

            await super().__call__(scope, receive, last)

    with served(Closes(Node(PollResponse))) as address, SchedulerClient([address]) as client:
        for _ in range(3):
            assert client.poll(PollRequest()) == PollResponse()


@pytest.mark.parametrize("address", ["", "127.0.0.1:80", "ftp://127.0.0.1", "http://10.0.0.1:80", "http://a/b",
                                     "http://127.0.0.1:80800", "http://localhost:port", "http://[::1:80"])
def test_an_invalid_or_public_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidInput):
        SchedulerClient([address])


@pytest.mark.parametrize("token", [SECRET, f"{SECRET}\n", "пароль из многих букв"])
def test_a_token_has_any_letters_and_may_be_a_line_of_a_file(token: str) -> None:
    with served(SchedulerApplication(opened(), tokens={"workers": token})) as address, \
            SchedulerClient([address], token=token) as client:
        assert client.status()["jobs"] == 0
    with pytest.raises(InvalidInput, match="one line"):
        SchedulerClient([address], token=f"{token}\n{token}")


def test_a_time_that_no_socket_waits_is_refused() -> None:
    with pytest.raises(InvalidInput, match="timeout_seconds is inf"):
        SchedulerClient(["http://127.0.0.1:1"], timeout_seconds=float("inf"))


def test_the_page_of_another_server_is_no_answer() -> None:
    class Page(SchedulerApplication):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"6")]})
            await send({"type": "http.response.body", "body": b"<html>"})

    with served(Page(Node(PollResponse))) as address, SchedulerClient([address]) as client:
        for call in (client.status, lambda: client.poll(PollRequest())):
            with pytest.raises(NoAnswer, match="cannot be decoded"):
                call()
