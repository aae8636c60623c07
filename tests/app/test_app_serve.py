# SPDX-License-Identifier: Apache-2.0
"""`compactlib serve`: what it refuses. That it serves is shown with real workers in `tests/hosting`."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import attrs
import pytest

from compactlib.app.cli import main
from compactlib.app.serve import address_of, opened, tokens_of
from compactlib.errors import InvalidInput, StorageError
from compactlib.hosting.http.client import SchedulerClient
from compactlib.kv import MemoryStore, SqliteStore
from compactlib.runtime import Observer
from compactlib.runtime.doors import TurnedAway
from compactlib.scheduler import Configure, LevelConfig, SchedulerConfig, StoredScheduler
from tests.hosting.certificates import Authority

SECRET = "a secret of sixteen or more"


@pytest.mark.parametrize(("text", "address"), [
    ("127.0.0.1:8080", ("127.0.0.1", 8080)), ("localhost:0", ("localhost", 0)), ("[::1]:80", ("::1", 80))])
def test_an_address_is_a_host_and_a_port(text: str, address: tuple[str, int]) -> None:
    assert address_of(text) == address


@pytest.mark.parametrize("text", ["", "8080", ":8080", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "::1:80", "a:65536",
                                  "127.0.0.1:\u00b2", "[::1", "[::1:80", "::1]:80", "[]:80", "[a]b]:80"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="no address to listen on; give HOST:PORT"):
        address_of(text)


def test_tokens_come_from_a_file_of_its_owner_s_own(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# who may ask\n\nworkers {SECRET.replace(' ', '-')}\nprometheus {'x' * 16}\n")
    path.chmod(0o600)
    assert tokens_of(str(path)) == {"workers": SECRET.replace(" ", "-"), "prometheus": "x" * 16}
    path.chmod(0o640)
    with pytest.raises(InvalidInput, match="chmod 600 it"):
        tokens_of(str(path))
    path.chmod(0o600)
    for text in ("", "alone\n", "a b c\n", "a b\na c\n", "\n# none\n"):
        path.write_text(text)
        with pytest.raises(InvalidInput, match="each name once"):
            tokens_of(str(path))
    path.write_bytes(b"a \xff\n")
    with pytest.raises(InvalidInput, match="UTF-8"):
        tokens_of(str(path))
    with pytest.raises(StorageError):
        tokens_of(str(tmp_path / "none"))


@pytest.mark.parametrize(("words", "why"), [
    (["0.0.0.0:0"], "without tls= with tokens or certificates of clients"),
    (["127.0.0.1:0", "--key", "key.pem"], "give the server's --certificate too"),
    (["127.0.0.1:0", "--certificate", "none.pem"], "give files in PEM"), (["here"], "give HOST:PORT")])
def test_what_it_refuses_is_one_line_and_exit_code_2(words: list[str], why: str, tmp_path: Path,
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(tmp_path / "jobs.sqlite"), *words]) == 2
    assert why in capsys.readouterr().err


def test_a_scheduler_that_was_there_goes_on_under_its_settings() -> None:
    kv, config = MemoryStore(), SchedulerConfig(levels=(LevelConfig(max_blocks=2),), max_failures=7)
    assert opened(kv, Observer()).service.config == SchedulerConfig()
    StoredScheduler(kv, config).apply(Configure(attrs.evolve(config, max_failures=8)))
    for _ in range(2):
        assert opened(kv, Observer()).service.config == attrs.evolve(config, max_failures=8)


def test_a_file_of_other_stores_is_not_taken_for_a_new_scheduler_s(tmp_path: Path) -> None:
    path = tmp_path / "branches.sqlite"

    def refusal() -> str:
        done = subprocess.run([sys.executable, "-m", "compactlib", "serve", path, "0.0.0.0:0"], capture_output=True,
                              text=True, check=False, timeout=120)
        assert done.returncode == 2
        return done.stderr

    with closing(SqliteStore(path)) as kv:
        kv.set(b"staging/repository", b"a", b"1")
        assert f"{path} holds no scheduler, but b'staging/repository'; give the scheduler's file" in refusal()
        assert list(kv.partitions()) == [b"staging/repository"]
        StoredScheduler(kv).close()
        assert "without tls=" in refusal(), "beside a scheduler there may be others"


@pytest.mark.parametrize(("address", "why"), [("0.0.0.0:0", "stay on 127.0.0.1"), ("127.0.0.1:", "in use")])
def test_what_cannot_be_served_is_not_taken_over_from_a_server_that_runs(address: str, why: str, tmp_path: Path
                                                                         ) -> None:
    path = str(tmp_path / "jobs.sqlite")
    with closing(SqliteStore(path)) as kv, socket.create_server(("127.0.0.1", 0)) as taken:
        first = StoredScheduler(kv)
        where = f"{address}{taken.getsockname()[1]}" if address.endswith(":") else address
        second = subprocess.run([sys.executable, "-m", "compactlib", "serve", path, where], capture_output=True,
                                text=True, check=False, timeout=120)
        assert (second.returncode, why in second.stderr) == (2, True)
        first.add_blocks(())
        first.audit()


def test_one_process_may_serve_again_also_beside_metrics_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "twice.py"
    script.write_text(
        "import os, signal, sys, threading, time\n"
        "from compactlib.app.cli import main\n"
        "from compactlib.runtime.observe import PrometheusObserver\n"
        "def stop():\n"
        "    while signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:\n"
        "        time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "mine = PrometheusObserver()\n"
        "for _ in range(2):\n"
        "    threading.Thread(target=stop, daemon=True).start()\n"
        "    assert main(['serve', sys.argv[1], '127.0.0.1:0']) == 0\n")
    done = subprocess.run([sys.executable, script, tmp_path / "jobs.sqlite"], capture_output=True, text=True,
                          check=False, timeout=120)
    assert (done.returncode, done.stdout.count(" is served at http://127.0.0.1:")) == (0, 2), done.stderr


def test_with_tokens_and_a_certificate_it_listens_for_those_who_have_both(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.context("localhost", server=True)
    tokens = tmp_path / "tokens"
    tokens.write_text(f"worker {'x' * 16}\n")
    tokens.chmod(0o600)
    made = subprocess.Popen(
        [sys.executable, "-m", "compactlib", "serve", str(tmp_path / "jobs.sqlite"), "127.0.0.1:0", "--tokens",
         str(tokens), "--certificate", str(tmp_path / "localhost.pem"), "--key", str(tmp_path / "localhost.key")],
        stdout=subprocess.PIPE, text=True)
    assert made.stdout is not None
    with made, made.stdout:
        said = made.stdout.readline().strip()
        assert "is served at https://127.0.0.1:" in said
        url = said.rpartition(" ")[2].rstrip("/").replace("127.0.0.1", "localhost")
        with SchedulerClient([url], token="x" * 16, tls=authority.context("w", server=False)) as client:
            assert client.status()["index"] >= 1
        with SchedulerClient([url], tls=authority.context("w", server=False)) as client, pytest.raises(TurnedAway):
            client.status()
        made.terminate()
    assert made.returncode == 0
    assert (tmp_path / "jobs.sqlite").stat().st_mode & 0o777 == 0o600, "it holds what seals tokens"
