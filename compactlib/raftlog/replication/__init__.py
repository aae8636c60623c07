# SPDX-License-Identifier: Apache-2.0
"""The transfer of a snapshot with its live entries to another member, over a stream that the host has opened.

    sender                                        receiver
    Offer ─────────────────────────────────────▶  refuses, or says what it has
          ◀─────────────────────────────────────  Accept(last_applied, state_offset)
    Live… Entries… State… ─────────────────────▶  writes them beside the log
          ◀─────────────────────────────────────  Installed, once the snapshot is in force, durably

`sending` and `receiving` are generators: they yield frames to be written, and are given frames that were read.
`streams.py` runs them over a stream of asyncio. Live entries come in the order of the log and before the state, each
frame with the index before its first entry. Neither side has timers: a silent stream is closed by the host, which ends
both sides. What has arrived of the state stays on the disk, and the next offer of the same snapshot goes on there.
"""
