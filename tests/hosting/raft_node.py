# SPDX-License-Identifier: Apache-2.0
"""One node of a group of schedulers: `python -m tests.hosting.raft_node ADDRESS PEER,PEER FOLDER`.

Each line of its standard input is a request, each line of its output the answer: `status`, `dump`, `audit`, `compact`,
`add MESSAGE`, `configure MESSAGE`, `poll MESSAGE`, with messages in hex.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from compactlib.errors import CompactlibError
from compactlib.hosting import RaftCommandLog, SchedulerHost
from compactlib.scheduler import AddBlocks, Configure, PollRequest
from compactlib.scheduler.persistence.codec import decode_message, encode_message
from tests.hosting.workload import CONFIG

QUICK: dict[str, Any] = {"raftMinTimeout": 0.4, "raftMaxTimeout": 0.9, "appendEntriesPeriod": 0.05,
                         "connectionRetryTime": 0.2}


def answer(host: SchedulerHost, log: RaftCommandLog, line: str) -> dict[str, Any]:
    """Carry out one request."""
    word, _, argument = line.partition(" ")
    message = decode_message(bytes.fromhex(argument)) if argument else None
    match word, message:
        case "status", _:
            return {"leader": log.leader, "leads": log.is_leader, "last": log.last_index, "term": log.term,
                    "applied": host.machine.applied_index}
        case "dump", _:
            return {"dump": host.machine.dump().hex()}
        case "audit", _:
            host.machine.service.audit()
            unaccounted = host.machine.service.state.unaccounted_blocks()
            assert unaccounted == [], unaccounted
            return {}
        case "compact", _:
            log.compact(log.last_index)
            return {}
        case "add", AddBlocks():
            return {"queued": len(host.add_blocks(message.blocks).queued)}
        case "configure", Configure():
            host.configure(message.config)
            return {}
        case "poll", PollRequest():
            return {"response": encode_message(host.poll(message)).hex(), "leads": log.is_leader}
    raise AssertionError(line)


def main(address: str, peers: str, folder: str) -> None:
    """Serve until standard input ends."""
    log = RaftCommandLog(address, peers.split(","), folder=folder, wait_seconds=5.0, **QUICK)
    with SchedulerHost(log, None, CONFIG) as host:
        for line in sys.stdin:
            try:
                reply = answer(host, log, line.strip())
            except CompactlibError as error:
                reply = {"error": type(error).__name__, "text": str(error)}
            sys.stdout.write(json.dumps(reply) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
