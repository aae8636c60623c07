"""The console script `compactlib`: the demo, and looking at, compacting and verifying a log from a terminal.

`docs/cli.md` describes the commands. The demo's state machine, `KvMachine`, is also the example of how a host finds
out which indexes are live.

>>> machine = KvMachine()
>>> machine.apply(1, Put("colour", b"red"))
>>> machine.apply(2, Put("colour", b"blue"))
>>> list(machine.live_indexes())
[2]
"""

from compactlib.app.cli import main
from compactlib.app.kv_machine import Command, Delete, KvMachine, Put, decode_command, encode_command

__all__ = ["Command", "Delete", "KvMachine", "Put", "decode_command", "encode_command", "main"]
