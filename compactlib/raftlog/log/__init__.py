# SPDX-License-Identifier: Apache-2.0
"""One log in a folder of segments: `SegmentLog` writes it, `LogReader` reads it; `OwnedLog` is also under `RaftLog`."""
