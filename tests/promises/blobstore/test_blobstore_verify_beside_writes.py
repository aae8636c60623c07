# SPDX-License-Identifier: Apache-2.0
"""A check of an open store, while another thread begins a segment, finds no damage."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from compactlib.blobstore import BlobStore


def test_segment_that_is_begun_during_a_check_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with BlobStore(tmp_path / "store") as store:
        store.put(b"a", b"content")
        rolling = threading.Thread(target=store.close_active_segment)
        listdir = os.listdir

        def listed(path: str) -> list[str]:
            names = listdir(path)
            if not rolling.ident:
                rolling.start()
                # Perhaps the writer waits for the check.
                rolling.join(0.3)
            return names

        monkeypatch.setattr(os, "listdir", listed)
        assert store.verify().findings == ()
        rolling.join()
