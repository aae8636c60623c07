# SPDX-License-Identifier: Apache-2.0
"""A durable log of commands for one state machine: the border at which a host brings its own Raft.

`CommandLog` is the protocol. `KVLog` stores the commands in a key-value store, `compactlib.raftlog.LocalLog` in a
folder.

>>> from compactlib.commandlog import Command, KVLog
>>> from compactlib.kv import MemoryStore
>>> class Counter:
...     applied_index = 0
...     value = 0
...     def apply(self, command: Command, payload: bytes) -> int:
...         self.applied_index = command.index
...         self.value += int(payload)
...         return self.value
>>> store = MemoryStore()
>>> log = KVLog(store)
>>> log.start(Counter())
>>> log.decide(lambda command: b"5"), log.decide(lambda command: b"2")
(5, 7)
>>> successor, restored = KVLog(store), Counter()
>>> successor.start(restored)
>>> restored.value, successor.term
(7, 2)
"""

from typing import TYPE_CHECKING

from compactlib._lazy import offer

if TYPE_CHECKING:
    from compactlib.commandlog.errors import (
        NoAnswer as NoAnswer,
        NotLeader as NotLeader,
        NotStarted as NotStarted,
        OutOfStep as OutOfStep,
        TakenOver as TakenOver,
    )
    from compactlib.commandlog.kv_log import KVLog as KVLog
    from compactlib.commandlog.protocol import (
        Command as Command,
        CommandLog as CommandLog,
        CommandMachine as CommandMachine,
    )
else:
    offer(__name__, {
        "compactlib.commandlog.errors": "NoAnswer NotLeader NotStarted OutOfStep TakenOver",
        "compactlib.commandlog.kv_log": "KVLog",
        "compactlib.commandlog.protocol": "Command CommandLog CommandMachine",
    })
