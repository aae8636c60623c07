# SPDX-License-Identifier: Apache-2.0
"""The console script `compactlib`: the demo, and looking at, compacting and verifying a log from a terminal.

`docs/cli.md` describes the commands. The demo's state machine, `KvMachine`, is also the example of how a host finds
out which indexes are live.

>>> from compactlib.app.kv_machine import KvMachine, Put, encode_command
>>> from compactlib.raftlog import Entry
>>> machine = KvMachine()
>>> for index, colour in enumerate((b"red", b"blue"), 1):
...     was_there = machine.apply(Entry(index, 1, encode_command(Put("colour", colour))))
>>> list(machine.live_set()), machine.place_of("colour")
([2], 2)
"""
