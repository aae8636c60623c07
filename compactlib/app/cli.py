# SPDX-License-Identifier: Apache-2.0
"""The console script `compactlib`. `docs/cli.md` describes it for users.

Exit codes: 0 all is well; 1 the log is damaged, or a part of the work could not be done; 2 the command could not be
carried out, and one line on stderr says why; 130 interrupted; 141 the output is not read any more.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import sysconfig
from collections.abc import Sequence

import compactlib
from compactlib.app import blob_commands, commands
from compactlib.app.commands import AUTO, POLICIES, CompactSettings
from compactlib.app.demo import DEFAULT_MAX_BYTES, DemoSettings, run_demo
from compactlib.app.executors import EXECUTORS
from compactlib.app.kinds import kind_of
from compactlib.errors import CompactlibError, InvalidInput

_DEMO_EXECUTORS = {"local": ("local",), "spark": ("spark",), "both": ("local", "spark")}
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
          "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out one command line; returns the exit code.

    Args:
        argv: the arguments without the program's name; default those of this process.

    Raises:
        SystemExit: `--help` or `--version` was asked for, or the arguments make no sense (code 2), as argparse does.
    """
    arguments = _parser().parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Names of files hold what they like; a terminal that cannot show it must not end the work.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("compactlib: interrupted; what was finished stays", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of the output, `head` for example, has seen enough. Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (CompactlibError, OSError) as error:
        print(f"compactlib: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "demo":
        return run_demo(DemoSettings(
            input=arguments.input, executors=_DEMO_EXECUTORS[arguments.executor], folder=arguments.folder,
            max_bytes=arguments.max_bytes, seed=arguments.seed, workers=arguments.workers))
    kind = kind_of(arguments.folder)
    if kind == "blob store":
        return _run_on_blobs(arguments)
    if kind == "store of raft logs" and arguments.command != "verify":
        if arguments.command == "inspect":
            return commands.inspect_store(arguments.folder, as_json=arguments.json)
        if arguments.command == "compact":
            raise InvalidInput(f"{arguments.folder} is a store of raft logs, which compacts them itself: "
                               f"RaftLogStore(folder, options).log(ID).compact(), or a LogCompactionWorker")
        raise InvalidInput(f"{arguments.folder} is a store of raft logs; say which one: "
                           f"{os.path.join(arguments.folder, 'logs', 'LOG')}, see compactlib inspect "
                           f"{arguments.folder}")
    if arguments.command == "inspect":
        return commands.inspect(arguments.folder, as_json=arguments.json)
    if arguments.command in ("plan", "why"):
        _require_policy(arguments, kind, [AUTO, *(policy.name for policy in POLICIES)])
        if arguments.retention is not None:
            raise InvalidInput("--retention is for blob stores; what is dead in a raft log, its snapshot says")
        show = commands.plan if arguments.command == "plan" else commands.why
        return show(arguments.folder, policy=arguments.policy, as_json=arguments.json)
    if arguments.command == "compact":
        return commands.compact(arguments.folder, CompactSettings(
            policy=arguments.policy, executor=arguments.executor, workers=arguments.workers,
            bytes_per_second=arguments.rate, total_bytes=arguments.max_bytes, as_json=arguments.json))
    return commands.verify(arguments.folder, as_json=arguments.json)


def _run_on_blobs(arguments: argparse.Namespace) -> int:
    if arguments.command == "inspect":
        return blob_commands.inspect(arguments.folder, as_json=arguments.json)
    if arguments.command == "verify":
        return blob_commands.verify(arguments.folder, as_json=arguments.json)
    if arguments.command == "compact":
        raise InvalidInput(f"{arguments.folder} is a blob store, which its owner compacts, who knows how long deletes "
                           f"are kept: BlobStore(folder, config).compact(), or a CompactionManager; compactlib plan "
                           f"says what that would do")
    _require_policy(arguments, "blob store", [policy.name for policy in blob_commands.POLICIES])
    show = blob_commands.plan if arguments.command == "plan" else blob_commands.why
    return show(arguments.folder, policy=arguments.policy, retention_seconds=arguments.retention,
                as_json=arguments.json)


def _require_policy(arguments: argparse.Namespace, kind: str, known: Sequence[str]) -> None:
    if arguments.policy is not None and arguments.policy not in known:
        raise InvalidInput(f"{arguments.folder} is a {kind}, for which there is no policy {arguments.policy!r}; give "
                           f"one of {', '.join(known)}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="compactlib", description="Compaction primitives: try them, and look after the logs they made.",
        epilog="Sizes are bytes, or a number with a unit: 500kB, 64MB, 1GiB.")
    parser.add_argument("--version", action="version", version=f"compactlib {compactlib.__version__}")
    verbs = parser.add_subparsers(dest="command", required=True, metavar="command")
    _add_demo(verbs.add_parser("demo", help="write a real log, compact it, prove that nothing was lost"))
    _add_log(verbs.add_parser("inspect", help="what lies in a folder; changes nothing"))
    _add_plan(_add_log(verbs.add_parser("plan", help="what a compaction would do, and why; changes nothing")))
    _add_plan(_add_log(verbs.add_parser("why", help="why that much is compacted, or nothing; changes nothing")))
    _add_compact(_add_log(verbs.add_parser("compact", help="give back what the last snapshot left dead")))
    _add_log(verbs.add_parser("verify", help="read and check everything; changes nothing"))
    return parser


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--input", metavar="FOLDER", default=sysconfig.get_paths()["stdlib"],
                        help="read the files below it (default: Python's standard library)")
    parser.add_argument("--executor", choices=tuple(_DEMO_EXECUTORS), default="both",
                        help="where to compact (default: both, one after the other)")
    parser.add_argument("--folder", metavar="FOLDER", help="keep the logs there; missing or empty")
    parser.add_argument("--max-bytes", metavar="SIZE", type=_size, default=DEFAULT_MAX_BYTES,
                        help=f"read files of so many bytes (default: {DEFAULT_MAX_BYTES // 10**6}MB)")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="another choice of files and history")
    _add_workers(parser)


def _add_log(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("folder", metavar="FOLDER", help="the folder of a raft log or a blob store")
    parser.add_argument("--json", action="store_true", help="plain data instead of tables")
    return parser


def _add_plan(parser: argparse.ArgumentParser) -> None:
    logs, blobs = [AUTO, *(policy.name for policy in POLICIES)], [policy.name for policy in blob_commands.POLICIES]
    parser.add_argument("--policy", metavar="NAME",
                        help=f"what chooses; of a raft log {', '.join(logs)} (default: {AUTO}), of a blob store "
                             f"{', '.join(blobs)} (default: {blobs[0]})")
    parser.add_argument("--retention", metavar="SECONDS", type=float,
                        help="of a blob store: how long its owner keeps deletes (default: the configuration's default)")


def _add_compact(parser: argparse.ArgumentParser) -> None:
    _add_policy(parser)
    parser.add_argument("--executor", choices=EXECUTORS, default="local",
                        help="who copies: this process, several, or Spark (default: local)")
    _add_workers(parser)
    parser.add_argument("--rate", metavar="SIZE", type=_size, help="write at most so many bytes a second")
    parser.add_argument("--max-bytes", metavar="SIZE", type=_size, help="write at most so many bytes in all")


def _add_policy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--policy", choices=[AUTO, *(policy.name for policy in POLICIES)], default=AUTO,
                        help="what is rewritten; auto: seed if as many bytes are dead as live, else drop "
                             "(default: auto)")


def _add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", metavar="N", type=int,
                        help="how many tasks run at once (default: 1 locally, else one per processor)")


def _size(text: str) -> int:
    match = re.fullmatch(r"([0-9][0-9_]*(?:\.[0-9]+)?)([kmgt]i?|)b?", text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write bytes, or for example 64MB or 1GiB")
    return round(float(match[1]) * _UNITS[match[2]])
