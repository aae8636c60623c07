# SPDX-License-Identifier: Apache-2.0
"""An interrupt at any place of a fence in a folder leaves no file open, and the fence and its folder usable."""

from __future__ import annotations

import gc
import os
import warnings
from pathlib import Path

import pytest

from compactlib.fences import FileFence
from compactlib.testing import Interrupted


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def work(fence: FileFence, token: int) -> None:
    with fence.guard("log", token):
        fence.commit("log", token, b"files")
    fence.committed("log")


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_an_interrupt_leaves_no_file_open(tmp_path: Path) -> None:
    fence, token = FileFence(tmp_path), 1
    with Interrupted() as whole:
        work(fence, token)
    before, places = open_descriptors(), whole.places
    for place in range(1, places + 1):
        token += 1
        interrupted = Interrupted(place)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                with interrupted:
                    work(fence, token)
            except KeyboardInterrupt:
                pass
            gc.collect(1)  # the young: among ten thousand tests a whole collection takes a second
        assert not warned, f"{interrupted.where}: {warned[0].message}"
        assert open_descriptors() == before, interrupted.where
        assert fence.admit("log", token).token == token
