# SPDX-License-Identifier: Apache-2.0
"""A scheduler over HTTP: what is asked and answered, who may ask, what a client does when a node or a line fails."""

from __future__ import annotations

import contextlib
import json
import math
import random
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import httpcore
import pytest

from compactlib.clock import ManualClock
from compactlib.errors import Busy, ClockJumped, Closed, CompactlibError, InvalidInput, StorageError, Unsupported
from compactlib.files.record_frame import RecordFrame
from compactlib.hosting import LogBroken, NoAnswer, NotLeader, PollAgain
from compactlib.hosting.http import client as client_module, wire as wire_module
from compactlib.hosting.http.application import HttpLimits, SchedulerApplication
from compactlib.hosting.http.client import SchedulerClient
from compactlib.hosting.http.wire import JSON, RECORD
from compactlib.kv import MemoryStore, OutcomeUnknown
from compactlib.runtime import PrometheusObserver, RecordingObserver
from compactlib.runtime.doors import TurnedAway
from compactlib.runtime.observe import telling
from compactlib.scheduler import (
    BlockMeta,
    CompactedBlocks,
    JobStatus,
    LevelConfig,
    NoOutput,
    PollRequest,
    PollResponse,
    SchedulerConfig,
    SchedulerService,
    StatusUpdate,
    StoredScheduler,
    Worker,
    WorkerOptions,
)
from compactlib.scheduler.errors import JournalConflict
from compactlib.scheduler.model.poll import Verdict
from compactlib.scheduler.model.update import BlocksAdded
from compactlib.scheduler.persistence.codec import MAGIC
from tests.harness.forks import in_a_fork
from tests.harness.kv.faulty_proxy import Fault, FaultyProxy
from tests.hosting.certificates import Authority
from tests.hosting.http_serving import answered, served
from tests.hosting.workload import CONFIG, PlainWorker, blocks, success

TOKEN = "a secret of sixteen or more"


def stored(config: SchedulerConfig = CONFIG) -> StoredScheduler:
    return StoredScheduler(MemoryStore(), config)


class Stub:
    """Stands where a scheduler does; raises what it is told to, or answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.polls = 0

    def poll(self, request: PollRequest) -> PollResponse:
        self.polls += 1
        if self.errors:
            raise self.errors.pop(0)
        return PollResponse(why="answered")

    def add_blocks(self, blocks: Iterable[BlockMeta]) -> BlocksAdded:
        self.poll(PollRequest())
        return BlocksAdded(tuple(block.id for block in blocks))

    def look(self, at: Callable[[SchedulerService], Any]) -> Any:
        self.poll(PollRequest())
        return at(SchedulerService())


# ------------------------------------------------------------------------------------------- what is asked


@pytest.mark.parametrize("compact", [False, True])
def test_jobs_go_out_and_come_back_done_failed_and_released(compact: bool) -> None:
    scheduler = stored()
    with served(SchedulerApplication(scheduler)) as serving, \
            SchedulerClient([serving.url], compact=compact) as client:
        added = client.add_blocks(blocks(0, 12))
        assert len(added.queued) == 12
        assert client.add_blocks(blocks(0, 1)) == BlocksAdded(duplicate=("b0",))
        client.poll(PollRequest(job_capacity=4))
        given = client.poll(PollRequest(job_capacity=4))
        assert len(given.compaction_jobs) == 4
        (done, first), (failed, second), (back, third), (held, fourth) = zip(
            given.compaction_jobs, given.assignments, strict=True)
        said = client.poll(PollRequest((
            success(done, first.token),
            StatusUpdate(failed.name, second.token, JobStatus.FAILED, reason="no disk"),
            StatusUpdate(back.name, third.token, JobStatus.RELEASED),
            StatusUpdate(held.name, fourth.token, JobStatus.IN_PROGRESS))))
        assert [answer.verdict for answer in said.answers] == [Verdict.ACCEPTED] * 4
        assert [lease.name for lease in said.assignments] == [held.name]
        assert scheduler.service.job(failed.name)[0].last_failure == "no disk"
        status = client.status()
        assert (status["lease_count"], status["tombstone_count"], status["index"]) == (
            1, 1, scheduler.service.state.applied_index)
        assert status["levels"][0]["completed"] == 1
        scheduler.audit()


def test_an_execute_works_through_it_unchanged() -> None:
    scheduler = stored(SchedulerConfig(levels=(LevelConfig(max_blocks=2),)))

    def execute(job: Any) -> CompactedBlocks:
        job.check()
        return CompactedBlocks(tenant="acme", shard=job.plan.shard, source_blocks=job.plan.source_blocks,
                               no_output=NoOutput.EMPTY)

    with served(SchedulerApplication(scheduler)) as serving, SchedulerClient([serving.url]) as client:
        client.add_blocks(blocks(0, 12))
        with Worker(client, execute, options=WorkerOptions(capacity=2, poll_seconds=0.005)) as worker:
            while client.status()["levels"][0]["completed"] < 6:
                threading.Event().wait(0.005)
        assert worker.last_error is None
        scheduler.audit()


def test_many_workers_at_once() -> None:
    scheduler = stored()
    with served(SchedulerApplication(scheduler)) as serving, SchedulerClient([serving.url]) as client:
        client.add_blocks(blocks(0, 120))
        workers = [PlainWorker(seed, diligent=True) for seed in range(6)]

        def work(worker: PlainWorker) -> None:
            for _ in range(25):
                worker.poll(client)

        threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        done = [name for worker in workers for name in worker.completed.elements()]
        assert len(done) == len(set(done)) >= 60
        scheduler.audit()


@pytest.mark.parametrize(("method", "path", "body", "headers", "status", "why"), [
    ("GET", "/v2/poll", b"", {}, 404, "ask for one of /v1/poll, /v1/add_blocks"),
    ("GET", "/v1/poll", b"", {}, 405, "ask with POST"), ("DELETE", "/v1/status", b"", {}, 405, "ask with GET"),
    ("POST", "/v1/poll", b"{}", {}, 415, "the content type is ''; send application/json or application/vnd"),
    ("POST", "/v1/poll", b"{}", {"content_type": "text/plain"}, 415, "the content type is 'text/plain'"),
    ("POST", "/v1/poll", b"{}", {"content_type": JSON, "content_encoding": "gzip"}, 415, "as it is"),
    ("POST", "/v1/poll", b"", {"content_type": JSON}, 411, "send Content-Length"),
    ("POST", "/v1/poll", b"", {"content_type": JSON, "content_length": "-1"}, 411, "send Content-Length"),
    ("POST", "/v1/poll", b"", {"content_type": JSON, "content_length": "1001"}, 413, "max_body_bytes=1000"),
    ("POST", "/v1/poll", b"[]", {"content_type": "Application/JSON; charset=utf-8"}, 400, r"found []"),
    ("POST", "/v1/poll", b"\0", {"content_type": RECORD}, 400, "no record of a PollRequest"),
    ("POST", "/v1/poll", b'{"job_capacity": -1}', {"content_type": JSON}, 400, "job_capacity is -1"),
    ("GET", "/v1/status", b"", {"x": "y" * 5000}, 431, "max_head_bytes=4096"),
    ("GET", "/metrics", b"", {}, 404, "give the application metrics=")])
def test_what_cannot_be_answered_says_why(method: str, path: str, body: bytes, headers: dict[str, Any], status: int,
                                          why: str) -> None:
    observer = RecordingObserver()
    application = SchedulerApplication(stored(), limits=HttpLimits(max_body_bytes=1000, max_head_bytes=4096),
                                       observer=observer)
    found, sent, answer = answered(application, method, path, body, **headers)
    told = json.loads(answer)
    assert (found, told["changed"], why in told["message"]) == (status, "no", True), told
    assert (sent["content-type"], sent["cache-control"]) == (JSON, "no-store")
    [[name, fields]] = observer.events
    assert (name, fields["status"], fields["client"]) == ("scheduler_request_refused", str(status), "127.0.0.1")


def test_what_is_answered_takes_the_form_that_is_accepted() -> None:
    application = SchedulerApplication(stored())
    for accept, media in (("*/*", JSON), (f"{RECORD}, */*", RECORD)):
        status, headers, _ = answered(application, "POST", "/v1/poll", b"{}", content_type=JSON, accept=accept)
        assert (status, headers["content-type"]) == (200, media)
    assert answered(application, "HEAD", "/v1/status")[0] == 200


def test_metrics_are_those_of_the_scheduler_and_its_levels() -> None:
    prometheus = pytest.importorskip("prometheus_client")
    observer = PrometheusObserver(prometheus.CollectorRegistry())
    scheduler = StoredScheduler(MemoryStore(), CONFIG, observer=telling(observer))
    scheduler.add_blocks(blocks(0, 7))
    scheduler.poll(PollRequest(job_capacity=1))
    scheduler.poll(PollRequest(job_capacity=1))
    status, headers, text = answered(SchedulerApplication(scheduler, metrics=observer), path="/metrics")
    assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    lines = text.decode().splitlines()
    assert 'compactlib_scheduler_jobs{level="0",phase="in progress"} 1.0' in lines
    assert "compactlib_scheduler_quarantine 0.0" in lines
    lease = 'compactlib_store_oldest_lease_seconds{kind="scheduler",store="scheduler"} '
    assert any(line.startswith(lease) for line in lines), "the numbers that every store has, as of now"
    # A node that does not lead has no levels, and exports the rest.
    follower = SchedulerApplication(Stub(NotLeader(leader="")), metrics=observer)
    assert answered(follower, path="/metrics")[0] == 200


# ------------------------------------------------------------------------------------------- who may ask


@pytest.mark.parametrize(("tokens", "client", "headers", "status"), [
    ({}, "127.0.0.1", {}, 200), ({}, "::1", {"host": "[::1]:80"}, 200), ({}, "127.0.0.1", {"host": "localhost"}, 200),
    ({}, "10.0.0.1", {}, 403), ({}, "", {}, 403), ({}, "127.0.0.1", {"host": "evil.example"}, 403),
    ({}, "127.0.0.1", {"host": "127.0.0.1.evil.example:80"}, 403), ({}, "127.0.0.1", {"host": "[::1"}, 403),
    ({}, "127.0.0.1", {"x_forwarded_for": "10.0.0.1"}, 403), ({}, "127.0.0.1", {"forwarded": "for=10.0.0.1"}, 403),
    ({"w": TOKEN}, "127.0.0.1", {}, 401), ({"w": TOKEN}, "10.0.0.1", {"authorization": f"Bearer {TOKEN}"}, 200),
    ({"v": "x" * 16, "w": TOKEN}, "10.0.0.1", {"authorization": f"bearer {TOKEN}", "host": "any.example"}, 200),
    ({"w": TOKEN}, "10.0.0.1", {"authorization": f"Bearer {TOKEN}x"}, 401),
    ({"w": TOKEN}, "10.0.0.1", {"authorization": "Bearer "}, 401), ({"w": TOKEN}, "::1", {"authorization": TOKEN}, 401),
    ({"w": TOKEN}, "10.0.0.1", {"authorization": f"Basic {TOKEN}"}, 401)])
def test_who_asks_is_known_or_on_this_machine(tokens: dict[str, str], client: str, headers: dict[str, Any],
                                              status: int) -> None:
    stub = Stub()
    application = SchedulerApplication(stub, tokens=tokens)
    found, sent, _ = answered(application, client=client, **headers)
    assert (found, stub.polls) == (status, int(status == 200))
    assert sent.get("connection") == (None if status == 200 else "close")
    assert (answered(SchedulerApplication(stub, insecure=True), client=client, **headers))[0] == 200


@pytest.mark.parametrize("host", ["10.0.0.1", "0.0.0.0", "example.org"])
def test_a_client_without_tls_stays_on_this_machine(host: str) -> None:
    with pytest.raises(InvalidInput, match="without https://, where whoever reaches it"):
        SchedulerClient([f"http://{host}:80"])
    SchedulerClient([f"http://{host}:80"], insecure=True).close()


def test_a_client_goes_by_the_certificate_of_the_server(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    authority, other = Authority(tmp_path), Authority(tmp_path / "other")
    with served(SchedulerApplication(Stub()), authority.context("localhost", server=True)) as serving:
        with SchedulerClient([serving.url], tls=authority.context("w", server=False)) as client:
            assert client.poll(PollRequest()).why == "answered"
        with SchedulerClient([serving.url], tls=other.context("w", server=False), clock=ManualClock(0.0)) as client, \
                pytest.raises((Busy, NoAnswer)):
            client.poll(PollRequest())


@pytest.mark.parametrize(("address", "asked"), [
    ("https://jobs.кто.рф:8443", "https://jobs.xn--j1ail.xn--p1ai:8443"), ("https://Käse:1", "https://xn--kse-qla:1"),
    ("https://Jobs.example:08443/", "https://jobs.example:8443"), ("https://[::1]:80", "https://[::1]:80"),
    ("https://jobs", "https://jobs")])
def test_a_host_may_have_any_letters(address: str, asked: str) -> None:
    with SchedulerClient([address]) as client:
        assert client.addresses == (asked,)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan, 1e10, True])
def test_a_time_that_no_call_ends_by_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidInput, match="timeout_seconds is"):
        SchedulerClient(["http://127.0.0.1:1"], timeout_seconds=seconds)


@pytest.mark.parametrize("token", ["", TOKEN + "\n", " " + TOKEN, TOKEN + "\u20ac"])
def test_a_token_that_no_header_takes_is_refused_and_not_shown(token: Any) -> None:
    with pytest.raises(InvalidInput, match="token") as refused:
        SchedulerClient(["http://127.0.0.1:1"], token=token)
    assert TOKEN not in str(refused.value)


def test_a_client_that_is_closed_says_so() -> None:
    client = SchedulerClient(["http://127.0.0.1:1"])
    client.close()
    for call in (lambda: client.poll(PollRequest()), client.status):
        with pytest.raises(Closed, match="the scheduler's client was closed; open it again"):
            call()


@pytest.mark.parametrize(("ask", "kind"), [(lambda client: client.poll(PollRequest()), NoAnswer),
                                           (lambda client: client.status(), Closed)], ids=["poll", "status"])
def test_a_client_that_is_closed_lets_go_of_calls_that_wait(ask: Callable[[SchedulerClient], object],
                                                            kind: type[Exception]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = SchedulerClient([f"http://127.0.0.1:{silent.getsockname()[1]}"], timeout_seconds=300.0)
        found: list[BaseException] = []

        def call() -> None:
            try:
                ask(client)
            except CompactlibError as error:
                found.append(error)

        waiting = threading.Thread(target=call, daemon=True)
        waiting.start()
        line, _ = silent.accept()
        with line:
            assert line.recv(1)
            client.close()
            waiting.join(60)
        assert [type(error) for error in found] == [kind]


def test_a_token_says_who_asks_and_a_stranger_is_sent_away() -> None:
    with served(SchedulerApplication(Stub(), tokens={"w": TOKEN})) as serving:
        with SchedulerClient([serving.url], token=TOKEN) as client:
            assert client.poll(PollRequest()).why == "answered"
        for token in (None, TOKEN[::-1]):
            with SchedulerClient([serving.url], token=token) as client, \
                    pytest.raises(TurnedAway, match="say who asks: Authorization"):
                client.add_blocks(blocks(0, 1))


# ------------------------------------------------------------------------------------------- what fails


NOTHING_CHANGED = [NotLeader(leader=""), PollAgain(prepared=1, found=2), Busy("wait"), JournalConflict(index=3),
                   Closed("closed"), ClockJumped(seconds=99.0, max_jump_seconds=60.0, confirm_seconds=30.0)]
UNKNOWN = [NoAnswer(waited_seconds=1.0, reason="no majority"), LogBroken(index=2, durable_index=1, cause="/a/path"),
           StorageError(operation="write", path="/a/path", errno=5),
           OutcomeUnknown(operation="set_if", path="/a/path", detail="gone")]


def named(error: Exception) -> str:
    return type(error).__name__


@pytest.mark.parametrize("error", NOTHING_CHANGED, ids=named)
def test_what_changed_nothing_is_tried_again(error: Exception) -> None:
    stub = Stub(error)
    with served(SchedulerApplication(stub)) as serving, SchedulerClient([serving.url]) as client:
        assert client.poll(PollRequest()).why == "answered"
        assert stub.polls == 2
        stub.errors = [error] * 1000
        # With these pauses the last try, too, has a second of real time left for its answer.
        with SchedulerClient([serving.url], clock=ManualClock(0.0), rng=random.Random(6)) as hasty, \
                pytest.raises(Busy, match=f"nothing was changed; the last word of {serving.url}: {named(error)}"):
            hasty.add_blocks(blocks(0, 1))


@pytest.mark.parametrize("error", UNKNOWN, ids=named)
def test_what_may_have_been_done_is_said_to_be_unknown_and_names_no_files(error: Exception) -> None:
    stub = Stub(error)
    with served(SchedulerApplication(stub)) as serving, SchedulerClient([serving.url]) as client:
        with pytest.raises(NoAnswer, match=f"{named(error)}: it may have been carried out or not") as raised:
            client.poll(PollRequest())
        assert "/a/path" not in str(raised.value)
        assert stub.polls == 1
        stub.errors = [error]
        assert client.add_blocks(blocks(0, 1)).queued == ("b0",)


@pytest.mark.parametrize("tokens", [{"w": TOKEN}, None], ids=["a stranger", "not taken"])
def test_a_refusal_after_an_answer_that_was_lost_leaves_it_unknown(tokens: dict[str, str] | None) -> None:
    refuses = Stub(InvalidInput("no"))
    with served(SchedulerApplication(Stub(NoAnswer(waited_seconds=1.0, reason="no majority")))) as first, \
            served(SchedulerApplication(refuses, tokens=tokens)) as second, \
            SchedulerClient([first.url, second.url]) as client:
        with pytest.raises(NoAnswer, match="look before trying again") as raised:
            client.add_blocks(blocks(0, 1))
        assert isinstance(raised.value.__cause__, TurnedAway if tokens else InvalidInput)


def test_an_error_of_the_host_s_own_is_unknown_and_not_sent() -> None:
    with served(SchedulerApplication(Stub(ZeroDivisionError("secret")))) as serving:
        with SchedulerClient([serving.url]) as client, pytest.raises(NoAnswer, match="answered 500") as raised:
            client.poll(PollRequest())
        assert "secret" not in str(raised.value)


def test_the_client_goes_where_the_leader_is() -> None:
    leader, follower, lost = Stub(), Stub(), Stub()
    with served(SchedulerApplication(leader)) as first:
        nodes = {"10.0.0.1:7000": first.url, "10.0.0.9:7000": "http://10.0.0.9:80"}
        with served(SchedulerApplication(follower, nodes=nodes)) as second, \
                served(SchedulerApplication(lost, nodes=nodes)) as third:
            follower.errors = [NotLeader(leader="10.0.0.1:7000")] * 9
            with SchedulerClient([second.url, third.url, first.url]) as client:
                for _ in range(3):
                    assert client.poll(PollRequest()).why == "answered"
                assert (follower.polls, lost.polls, leader.polls) == (1, 0, 3)
                # Whoever else a node names is not asked: it would be told the token.
                leader.errors = [NotLeader(leader="10.0.0.9:7000")]
                follower.errors = [NotLeader(leader="")]
                assert client.poll(PollRequest()).why == "answered"
                assert (leader.polls, follower.polls, lost.polls) == (4, 2, 1)
            # Anybody else's client is told as HTTP has it.
            follower.errors = [NotLeader(leader="10.0.0.1:7000")]
            moved = httpcore.request("GET", second.url + "/v1/status")
            assert moved.status == 307
            assert (b"location", f"{first.url}/v1/status".encode()) in moved.headers
            assert json.loads(moved.content)["leader"] == first.url


def test_a_node_that_is_gone_is_left_for_another() -> None:
    with served(SchedulerApplication(Stub())) as gone:
        pass
    with served(SchedulerApplication(Stub())) as there, SchedulerClient([gone.url, there.url]) as client:
        assert client.poll(PollRequest()).why == "answered"
    with SchedulerClient([gone.url, there.url], clock=ManualClock(0.0)) as client, \
            pytest.raises(Busy, match=r"nothing was changed.*it cannot be reached"):
        client.poll(PollRequest())


def test_the_pause_after_a_try_ends_with_the_call() -> None:
    clock = ManualClock()

    class Slow(Stub):
        def poll(self, request: PollRequest) -> PollResponse:
            clock.advance(0.99)
            raise Busy("wait")

    with served(SchedulerApplication(Slow())) as serving, SchedulerClient(
            [serving.url], clock=clock, timeout_seconds=1.0) as client:
        with pytest.raises(Busy, match=r"within 1\.0 seconds, and nothing was changed"):
            client.poll(PollRequest())
        assert clock.monotonic() == pytest.approx(1.0)


def proxied(url: str, name: str = "Busy", status: int = 503) -> FaultyProxy:
    said = status, JSON, json.dumps({"error": name, "message": "wait", "changed": "no"}).encode()
    return FaultyProxy(url, throttled=said, failed=(502, "text/plain", b"bad gateway"))


@pytest.mark.parametrize(("status", "name", "kind"), [
    (400, "InvalidInput", InvalidInput), (400, "Unsupported", Unsupported), (413, "InvalidInput", InvalidInput),
    (401, "TurnedAway", TurnedAway), (403, "TurnedAway", TurnedAway)])
def test_what_trying_again_does_not_mend_is_raised_at_once(status: int, name: str, kind: type[Exception]) -> None:
    with proxied("http://127.0.0.1:1", name, status) as proxy, SchedulerClient([proxy.address]) as client:
        proxy.every(Fault.THROTTLE)
        with pytest.raises(kind, match="wait"):
            client.add_blocks(blocks(0, 1))
        assert proxy.requests == 1


LATER = RecordFrame("scheduler record", MAGIC, 99, "<HH").encode(4, body=b"[]")


@pytest.mark.parametrize("said", [b"welcome", b"[" * 100_000, b"[]", LATER],
                         ids=["words", "nested", "a list", "a later release"])
@pytest.mark.parametrize(("status", "ask", "kind"), [(200, SchedulerClient.status, Busy),
                                                     (200, lambda client: client.poll(PollRequest()), NoAnswer),
                                                     (503, lambda client: client.poll(PollRequest()), NoAnswer)])
def test_an_answer_that_is_none_is_none(status: int, ask: Callable[[SchedulerClient], object],
                                        kind: type[CompactlibError], said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, \
            SchedulerClient([f"http://127.0.0.1:{listening.getsockname()[1]}"], compact=said is LATER) as client:
        def answer() -> None:
            line, _ = listening.accept()
            with line:
                line.recv(1 << 16)
                line.sendall(b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\n\r\n%b" % (status, len(said), said))

        answering = threading.Thread(target=answer)
        answering.start()
        with pytest.raises(kind, match=r"what came cannot be read|no scheduler's answer") as raised:
            ask(client)
        assert type(raised.value) is kind
        answering.join()


@pytest.mark.parametrize("compact", [False, True])
def test_an_answer_of_more_values_than_a_request_may_have_is_read(
        compact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was carried out: a worker that could not read it would lose the same jobs again and again."""
    monkeypatch.setattr(wire_module, "MAX_VALUES", 100)
    scheduler = stored()
    with served(SchedulerApplication(scheduler)) as serving, \
            SchedulerClient([serving.url], compact=compact) as client:
        scheduler.add_blocks(blocks(0, 60))
        client.poll(PollRequest(job_capacity=30))
        assert len(client.poll(PollRequest(job_capacity=30)).compaction_jobs) == 30
        with pytest.raises(InvalidInput, match="at most 100 are read"):
            client.add_blocks(blocks(100, 60))


def test_a_question_that_nobody_answers_is_no_command_of_unknown_outcome() -> None:
    with silent() as port, SchedulerClient([f"http://127.0.0.1:{port}"], timeout_seconds=0.5) as client:
        with pytest.raises(Busy, match="nothing was changed") as raised:
            client.status()
        assert type(raised.value) is Busy
        with pytest.raises(NoAnswer):
            client.poll(PollRequest())


@contextlib.contextmanager
def unreachable(host: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    """A port where nothing answers a connection, as if what lies between threw away what is sent."""
    with socket.socket() as listening, contextlib.ExitStack() as lines:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(0)
        for _ in range(4):
            line = lines.enter_context(socket.socket())
            line.setblocking(False)
            line.connect_ex(listening.getsockname())
        yield listening.getsockname()[1]


@contextlib.contextmanager
def silent() -> Iterator[int]:
    """A port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.mark.parametrize(("gone", "scheme"), [(unreachable, "http"), (unreachable, "https"), (silent, "https")])
def test_a_node_that_cannot_be_reached_leaves_time_for_the_others(
        gone: Callable[[], contextlib.AbstractContextManager[int]], scheme: str) -> None:
    with served(SchedulerApplication(Stub())) as serving, gone() as port, SchedulerClient(
            [f"{scheme}://127.0.0.1:{port}", serving.url], timeout_seconds=3.0) as client:
        assert client.poll(PollRequest()).why == "answered"


def test_an_address_of_a_name_that_cannot_be_reached_leaves_time_for_the_others(
        monkeypatch: pytest.MonkeyPatch) -> None:
    with served(SchedulerApplication(Stub())) as serving, unreachable("127.0.0.2", serving.port), SchedulerClient(
            [f"http://localhost:{serving.port}"], timeout_seconds=3.0) as client:
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, serving.port))
                 for host in ("127.0.0.2", "127.0.0.1")]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **more: found)
        assert client.poll(PollRequest()).why == "answered"


def test_after_a_call_that_nobody_answered_another_node_is_asked_first() -> None:
    with served(SchedulerApplication(Stub())) as serving, silent() as port, SchedulerClient(
            [f"http://127.0.0.1:{port}", serving.url], timeout_seconds=1.0) as client:
        with pytest.raises(NoAnswer):
            client.poll(PollRequest())
        assert client.poll(PollRequest()).why == "answered"


@pytest.mark.parametrize("at_once", [0, 1], ids=["head", "body"])
def test_an_answer_that_comes_byte_by_byte_does_not_hold_a_call_for_longer_than_it_may_last(at_once: int) -> None:
    said = [b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\nX: " + b"x" * 400 + b"\r\n\r\n", b'{"index": 0}' + b" " * 400]
    said[0] = said[0].replace(b"12", b"%d" % len(said[1]))
    with socket.create_server(("127.0.0.1", 0)) as listening, SchedulerClient(
            [f"http://127.0.0.1:{listening.getsockname()[1]}"], timeout_seconds=0.2) as client:
        def drip() -> None:
            line, _ = listening.accept()
            with line, contextlib.suppress(OSError):
                line.recv(1 << 16)
                line.sendall(b"".join(said[:at_once]))
                for byte in b"".join(said[at_once:]):
                    line.sendall(bytes([byte]))
                    threading.Event().wait(0.01)

        dripping = threading.Thread(target=drip)
        dripping.start()
        with pytest.raises(NoAnswer, match="the connection broke"):
            client.poll(PollRequest())
        dripping.join()


def test_a_connection_that_was_idle_for_long_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something between had forgotten it: what was asked then went nowhere, until the time of the call was over."""
    monkeypatch.setattr(client_module, "_LONGEST_IDLE_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listening, contextlib.ExitStack() as lines, SchedulerClient(
            [f"http://127.0.0.1:{listening.getsockname()[1]}"], timeout_seconds=5.0) as client:

        def answer_once_each() -> None:
            for _ in range(2):
                line = lines.enter_context(listening.accept()[0])
                line.recv(1 << 16)
                line.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

        answering = threading.Thread(target=answer_once_each, daemon=True)
        answering.start()
        assert [client.status(), client.status()] == [{}, {}]
        answering.join()


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.LOSE_REQUEST, Fault.GARBLE, Fault.FAIL, Fault.REPEAT])
def test_a_line_that_is_cut_after_the_server_has_done_it_does_no_harm(fault: Fault, compact: bool) -> None:
    scheduler = stored(attrs.evolve(CONFIG, lease_seconds=1000.0))
    with served(SchedulerApplication(scheduler)) as serving, proxied(serving.url) as proxy, \
            SchedulerClient([proxy.address], compact=compact) as client:
        faults: list[Fault | None] = [fault]
        proxy.choose = lambda body: faults.pop() if faults else None
        # Blocks are added again until there is an answer, and each is there once.
        added = client.add_blocks(blocks(0, 60))
        assert sorted(added.queued + added.duplicate) == sorted(block.id for block in blocks(0, 60))
        assert len(scheduler.service.state.blocks) == 60
        # A poll is not repeated: what it gave out is nobody's until its lease ends, and what it reported is said again.
        worker, unanswered = PlainWorker(1, diligent=True), 0
        for number in range(12):
            faults[:] = [fault] * (number % 3 == 2)
            try:
                worker.poll(client)
            except NoAnswer:
                unanswered += 1
        assert unanswered == (0 if fault is Fault.REPEAT else 4)
        assert set(worker.completed.values()) == {1}
        assert scheduler.service.state.unaccounted_blocks() == []
        scheduler.audit()


def test_a_completion_whose_answer_is_lost_counts_once() -> None:
    scheduler = stored()
    with served(SchedulerApplication(scheduler)) as serving, proxied(serving.url) as proxy, \
            SchedulerClient([proxy.address]) as client:
        client.add_blocks(blocks(0, 6))
        client.poll(PollRequest(job_capacity=1))
        given = client.poll(PollRequest(job_capacity=1))
        [lease], [plan] = given.assignments, given.compaction_jobs
        done = PollRequest((success(plan, lease.token),))
        proxy.every(Fault.LOSE_ANSWER)
        with pytest.raises(NoAnswer):
            client.poll(done)
        proxy.every(None)
        assert client.poll(done).answers[0].verdict is Verdict.NOT_FOUND
        assert scheduler.service.stats(0.0)[0]["completed"] == 1
        scheduler.audit()


def test_a_fork_does_not_use_its_parent_s_connections() -> None:
    with served(SchedulerApplication(Stub())) as serving, SchedulerClient([serving.url]) as client:
        client.poll(PollRequest())

        def attempt() -> object:
            try:
                client.poll(PollRequest())
            except Closed as refused:
                client.close()
                return str(refused)
            return "it was let in"

        assert "open it anew" in str(in_a_fork(attempt))
        with client._http._optional_thread_lock._lock:  # noqa: SLF001 - held by a thread that a fork does not have
            assert "open it anew" in str(in_a_fork(attempt, hangs_after_seconds=10.0))
        assert client.poll(PollRequest()) == PollResponse(why="answered")
