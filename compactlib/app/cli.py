# SPDX-License-Identifier: Apache-2.0
"""The console script `compactlib`. `docs/cli.md` describes it for users.

Exit codes: 0 all is well; 1 the log is damaged, or a part of the work could not be done; 2 the command could not be
carried out, and one line on stderr says why; 130 interrupted; 141 the output is not read any more.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
import sysconfig
from collections.abc import Sequence

import attrs

import compactlib
from compactlib.app.executors import EXECUTORS
from compactlib.app.kinds import KINDS, store_at
from compactlib.app.stores import Asked
from compactlib.app.terminal import Answer, show
from compactlib.app.workload import DEFAULT_MAX_BYTES
from compactlib.errors import AuditFailed, CompactlibError, CorruptData

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
    try:
        return _carried_out(argv)
    except KeyboardInterrupt:
        _say("interrupted; what was finished stays")
        return 130


def _carried_out(argv: Sequence[str] | None) -> int:
    _open_what_was_closed()
    arguments = _parser().parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Names of files hold what they like; a terminal that cannot show it must not end the work.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of the output, `head` for example, has seen enough. Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (CompactlibError, OSError) as error:
        _say(" ".join(str(error).split()))
        # Damage that lets nothing more be read is what it was to find.
        return 1 if arguments.command == "verify" and isinstance(error, CorruptData | AuditFailed) else 2


def _open_what_was_closed() -> None:
    """A stream that whoever started this has closed goes nowhere, and no file of a store gets its number."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(nowhere, "r" if name == "stdin" else "w", encoding="utf-8"))


def _say(what: str) -> None:
    # The exit code says it too, where the line cannot be written: on the same full disk, for example.
    with contextlib.suppress(OSError):
        print(f"compactlib: {what}", file=sys.stderr)


def _run(arguments: argparse.Namespace) -> int:
    # Each command imports what it needs: a start costs what is asked for.
    if arguments.command == "demo":
        from compactlib.app.demo import DemoSettings, run_demo

        return run_demo(DemoSettings(
            input=arguments.input, executors=_DEMO_EXECUTORS[arguments.executor or "both"],
            optional=("spark",) if arguments.executor is None else (), folder=arguments.folder,
            max_bytes=arguments.max_bytes, seed=arguments.seed, workers=arguments.workers))
    asked = Asked(**{name: value for name, value in vars(arguments).items() if name in attrs.fields_dict(Asked)})
    answer: Answer = getattr(store_at(asked), arguments.command)()
    return show(answer, as_json=arguments.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="compactlib", description="Compaction primitives: try them, and look after the stores they made.",
        epilog="Sizes are bytes, or a number with a unit: 500kB, 64MB, 1GiB.")
    parser.add_argument("--version", action="version", version=f"compactlib {compactlib.__version__}")
    verbs = parser.add_subparsers(dest="command", required=True, metavar="command")
    _add_demo(verbs.add_parser("demo", help="write a real log, compact it, prove that nothing was lost"))
    for name, does in (("inspect", "what lies there; changes nothing"),
                       ("plan", "what a compaction would do, and why; changes nothing"),
                       ("why", "why that much is compacted, or nothing; changes nothing"),
                       ("compact", "give back what is dead"),
                       ("verify", "read and check everything; changes nothing")):
        _add_store(name, verbs.add_parser(name, help=does))
    return parser


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--input", metavar="FOLDER", default=sysconfig.get_paths()["stdlib"],
                        help="read the files below it (default: Python's standard library)")
    parser.add_argument("--executor", choices=tuple(_DEMO_EXECUTORS),
                        help="where to compact (default: both, one after the other; without Spark, only here)")
    parser.add_argument("--folder", metavar="FOLDER", help="keep the logs there; missing or empty")
    parser.add_argument("--max-bytes", metavar="SIZE", type=_size, default=DEFAULT_MAX_BYTES,
                        help=f"read files of so many bytes (default: {DEFAULT_MAX_BYTES // 10**6}MB)")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="another choice of files and history")
    _add_workers(parser)


def _add_store(name: str, parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="a folder, or an SQLite file: " + ", ".join(
        kind.name for kind in KINDS))
    parser.add_argument("--json", action="store_true", help="plain data instead of tables")
    parser.add_argument("--partition", metavar="NAME", help="which repository, where an SQLite file holds several")
    parser.add_argument("--objects", metavar="FOLDER",
                        help="of a repository: where its ranges are (default: the folder beside the file)")
    if name in ("plan", "why", "compact"):
        known = [(kind.name, kind.policies) for kind in KINDS if kind.policies]
        parser.add_argument("--policy", metavar="NAME", choices={each for _, names in known for each in names},
                            help="what chooses; the first is the default: " + "; ".join(
                                f"{kind}: {', '.join(names)}" for kind, names in known))
        parser.add_argument("--branch", metavar="NAME", help="of a repository (default: main)")
        parser.add_argument("--retention", metavar="SECONDS", type=float,
                            help="of a blob store: how long its owner keeps deletes; compact needs it (default of the "
                                 "others: a week)")
    if name == "compact":
        parser.add_argument("--executor", choices=EXECUTORS,
                            help="of a raft log: who copies: this process, several, or Spark (default: local)")
        _add_workers(parser)
        parser.add_argument("--rate", metavar="SIZE", type=_size, help="write at most so many bytes a second")
        parser.add_argument("--max-bytes", metavar="SIZE", type=_size, help="write at most so many bytes in all")


def _add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", metavar="N", type=int,
                        help="how many tasks run at once (default: 1 locally, else one per processor)")


def _size(text: str) -> int:
    match = re.fullmatch(r"([0-9][0-9_]{0,99}(?:\.[0-9]+)?)([kmgt]i?|)b?", text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write bytes, or for example 64MB or 1GiB")
    return round(float(match[1]) * _UNITS[match[2]])
