# SPDX-License-Identifier: Apache-2.0
"""The tree of exceptions: one root, in one module, and every error arrives in another process as it was raised."""

from __future__ import annotations

import builtins
import copy
import errno
import importlib
import inspect
import pickle
import pkgutil
import re
import tomllib
from collections.abc import Iterator, Mapping
from enum import EnumType
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import compactlib
from compactlib import errors
from compactlib.commandlog.errors import NoAnswer
from compactlib.errors import (
    AuditFailed,
    BudgetSpent,
    Busy,
    Closed,
    CompactionFailed,
    CompactlibError,
    Conflict,
    CorruptData,
    DiskFull,
    InvalidInput,
    MissingDependency,
    NotFound,
    ReadOnly,
    Rejected,
    Stale,
    StorageError,
    TaskFailed,
    Unsupported,
)
from compactlib.kv.errors import OutcomeUnknown
from compactlib.raftlog.errors import TransferBroken

CLASSES = [value for value in vars(errors).values()
           if isinstance(value, type) and issubclass(value, BaseException) and value.__module__ == errors.__name__]
SAMPLES: dict[Any, Any] = {str: "told", float: 1.5, int: errno.ENOTDIR, int | None: 7, Any: ("a", "report"),
                           Mapping[str, CompactlibError]: {"the first group": NotFound("k")}}


def sample(kind: type[BaseException]) -> BaseException:
    """An error of this class, each argument filled in by its annotation."""
    if kind.__init__ is Exception.__init__:
        return kind("told")
    hints = get_type_hints(kind.__init__)
    positional, named = [], {}
    for parameter in list(inspect.signature(kind.__init__).parameters.values())[1:]:
        hint = hints[parameter.name]
        # A path may always be given as a string.
        value = next(iter(hint)) if isinstance(hint, EnumType) else SAMPLES.get(hint, "/some/path")
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            named[parameter.name] = value
        else:
            positional.append(value)
    return kind(*positional, **named)


def fields(error: BaseException) -> dict[str, str]:
    """Its attributes as text: errors among them equal only themselves."""
    return {name: repr(value) for name, value in vars(error).items()}


def builtin_fields(error: BaseException) -> dict[str, Any]:
    """The attributes that a builtin base keeps outside of `__dict__`."""
    return {name: getattr(error, name) for name in ("errno", "name", "path", "filename") if hasattr(error, name)}


def subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for below in kind.__subclasses__():
        yield below
        yield from subclasses(below)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_each_error_is_in_the_tree_documented_and_exported(kind: type[BaseException]) -> None:
    assert issubclass(kind, CompactlibError)
    assert kind.__doc__
    assert kind.__doc__.strip()
    assert getattr(errors, kind.__name__) is kind


def check_that_it_survives_pickling(error: BaseException, protocol: int) -> None:
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.args == error.args
    assert fields(again) == fields(error)
    assert builtin_fields(again) == builtin_fields(error)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_each_error_survives_pickling_with_all_its_fields(kind: type[BaseException], protocol: int) -> None:
    error = sample(kind)
    error.add_note("seen by the driver")
    check_that_it_survives_pickling(error, protocol)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_each_error_can_be_copied(kind: type[BaseException]) -> None:
    error = sample(kind)
    again = copy.deepcopy(error)
    assert (type(again), str(again), fields(again)) == (kind, str(error), fields(error))


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_each_argument_can_be_read_back(kind: type[BaseException]) -> None:
    error = sample(kind)
    for name, parameter in list(inspect.signature(kind.__init__).parameters.items())[1:]:
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            expected = SAMPLES.get(get_type_hints(kind.__init__)[name], "/some/path")
            assert getattr(error, name) == expected


def test_the_leaves_that_packages_add_keep_the_same_promises() -> None:
    for module in pkgutil.walk_packages(compactlib.__path__, "compactlib."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    leaves = {kind for kind in subclasses(CompactlibError) if kind.__module__.startswith("compactlib.")} - {*CLASSES}
    for kind in leaves:
        assert (kind.__doc__ or "").strip(), f"{kind} has no docstring"
        check_that_it_survives_pickling(sample(kind), pickle.HIGHEST_PROTOCOL)


def test_no_error_that_may_have_changed_something_is_a_rejection() -> None:
    unsure = [StorageError, CorruptData, Closed, AuditFailed, TaskFailed, CompactionFailed, NoAnswer, OutcomeUnknown,
              TransferBroken]
    assert not [kind for each in unsure for kind in (each, *subclasses(each)) if issubclass(kind, Rejected)]
    assert all(issubclass(kind, Rejected) for kind in (InvalidInput, NotFound, Conflict, Stale, Busy, Unsupported))


@pytest.mark.parametrize(("kind", "builtin"), [
    (InvalidInput, "ValueError"), (NotFound, "KeyError"), (MissingDependency, "ImportError"), (StorageError, "OSError"),
])
def test_errors_are_subclasses_of_the_builtin_errors(kind: type[CompactlibError], builtin: str) -> None:
    assert issubclass(kind, getattr(builtins, builtin))


def test_a_not_found_prints_its_message_and_not_its_repr() -> None:
    assert str(NotFound("nothing at 'x'")) == "nothing at 'x'"


def test_an_error_without_a_message_prints_its_name() -> None:
    error = NotFound("gone")
    error.args = ()
    assert str(error) == "NotFound"


def test_corrupt_data_names_the_place_and_the_bytes_found() -> None:
    error = CorruptData(path="/log/1.segment", offset=4096, expected="CRC 1", found="CRC 2", index=12)
    assert str(error) == ("corrupt data in /log/1.segment at offset 4096 (index 12): expected CRC 1, found CRC 2; "
                          "restore the file from a copy")
    without = CorruptData(path="/log/1.segment", offset=0, expected="a header", found="nothing")
    assert "index" not in str(without)
    assert without.index is None


def test_a_missing_dependency_names_the_package_to_install() -> None:
    error = MissingDependency(package="tqdm", extra="observe", purpose="a progress bar")
    assert str(error) == "a progress bar needs the package 'tqdm': pip install 'compactlib[observe]'"


def test_every_extra_that_a_message_names_can_be_installed() -> None:
    top = Path(compactlib.__path__[0])
    named = {extra for path in top.rglob("*.py") for extra in re.findall(r'extra="([^"]+)"', path.read_text())}
    extras = tomllib.loads((top.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert named
    assert named <= set(extras)


@pytest.mark.parametrize(("number", "kind"), [
    (errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EFBIG, DiskFull),
    (errno.EROFS, ReadOnly), (errno.EACCES, ReadOnly), (errno.EPERM, ReadOnly),
    (errno.EIO, StorageError),
])
def test_an_error_of_the_operating_system_gets_a_name(number: int, kind: type[StorageError]) -> None:
    error = StorageError.from_os(OSError(number, "told by the system"), "rename", "/log/1.segment")
    assert type(error) is kind
    assert (error.operation, error.path, error.errno) == ("rename", "/log/1.segment", number)
    assert str(error).startswith("rename /log/1.segment: ")


def test_an_os_error_without_a_number_counts_as_an_io_error() -> None:
    assert StorageError.from_os(OSError("odd"), "write", "/x").errno == errno.EIO


def test_a_spent_budget_counts_as_busy_and_gives_its_reason() -> None:
    error = BudgetSpent("the deadline has passed", reason="deadline", spent_bytes=10)
    assert isinstance(error, errors.Busy)
    assert (error.reason, error.spent_bytes) == ("deadline", 10)


@pytest.mark.parametrize(("number", "kind", "found", "advice"), [
    (errno.ENOSPC, DiskFull, "No space left on device", "call again; open the object again if it has closed"),
    (errno.EDQUOT, DiskFull, "Disk quota exceeded", "the disk may have room: remove what counts towards this quota"),
    (errno.EFBIG, DiskFull, "File too large", "use smaller files, or raise the limit of this process"),
    (errno.EROFS, ReadOnly, "Read-only file system", "mount the file system for writing, or use another folder"),
    (errno.EACCES, ReadOnly, "Permission denied", "give this process the permission for that"),
    (errno.ENOENT, StorageError, "No such file or directory", "a folder is made only inside a folder that exists"),
    (errno.EIO, StorageError, "Input/output error", "see the operating system's error"),
])
def test_a_storage_error_names_the_operation_and_a_remedy(number: int, kind: type[StorageError], found: str,
                                                          advice: str) -> None:
    error = StorageError.from_os(OSError(number, "x"), "write", "/some/path")
    assert type(error) is kind
    assert str(error).startswith(f"write /some/path: {found}; ")
    assert advice in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_write_of_unknown_outcome_says_so() -> None:
    error = OutcomeUnknown(operation="write", path="a store", detail="no answer")
    assert str(error).endswith("; it may or may not have happened, read to find out")
