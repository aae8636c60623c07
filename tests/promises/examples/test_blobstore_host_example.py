# SPDX-License-Identifier: Apache-2.0
"""`examples/blob_host.py`: a compaction of a running store is requested over HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

from compactlib.blobstore import BlobReader

EXAMPLE = Path(__file__).parents[3] / "examples" / "blob_host.py"
PATIENCE = 120.0


def post(address: str, path: str) -> tuple[int, dict[str, str]]:
    line = HTTPConnection(address, timeout=PATIENCE)
    try:
        line.request("POST", path)
        answer = line.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        line.close()


def test_a_running_store_is_compacted_on_request(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, str(EXAMPLE), str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True) as host:
        assert host.stdout is not None
        address = urlsplit(host.stdout.readline().strip()).netloc
        with BlobReader(tmp_path / "photos") as reader:
            before = reader.status().segments
        assert post(address, "/compact/videos") == (404, {"error": "there is no store 'videos'"})
        assert post(address, "/compact/photos") == (202, {"store": "photos", "error": ""})
        said, _ = host.communicate(timeout=PATIENCE)
    assert host.returncode == 0
    assert "blob store photos: " in said
    with BlobReader(tmp_path / "photos") as reader:
        assert reader.status().segments < before / 2
        assert reader.verify().is_sound
