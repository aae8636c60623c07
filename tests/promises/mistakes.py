# SPDX-License-Identifier: Apache-2.0
"""Generated mistakes: each place of the library that syncs, renames or removes leaves it out, or does it a step later.

A place is a function of the library with the one that called it, so that it has the same name in each run.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import attrs

import compactlib
from compactlib.errors import CompactlibError
from compactlib.files import Files
from compactlib.testing import Driver, Effort, FilesInFront, Request, World, check_hazards

Step: TypeAlias = Callable[[Request, Callable[[], Any]], Any]
KINDS = frozenset({"sync", "sync folder", "rename", "unlink", "remove folder"})
_LIBRARY = os.path.dirname(compactlib.__file__) + os.sep
_KIT = _LIBRARY + "testing" + os.sep
_DISK = _LIBRARY + "files" + os.sep


@attrs.frozen(order=True)
class Place:
    """Where the library makes a request to the disk.

    Attributes:
        kind: of the request.
        function: module and function, and those of its callers up to the one that is not a helper of `files`.
    """

    kind: str
    function: str

    def __str__(self) -> str:
        return f"{self.kind} in {self.function}"


def place_of(request: Request) -> Place:
    """The place that makes this request now."""
    frame = inspect.currentframe()
    names: list[str] = []
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(_LIBRARY) and not path.startswith(_KIT):
            module = path.removeprefix(_LIBRARY).removesuffix(".py").replace(os.sep, ".")
            names.append(f"{module}.{frame.f_code.co_name}")
            if not path.startswith(_DISK):
                break
        frame = frame.f_back
    return Place(request.kind, " < ".join(names) or "outside of the library")


class Places:
    """A step that notes each place with a request of `KINDS`.

    Attributes:
        seen: the places so far, in the order of their first request.
    """

    def __init__(self) -> None:
        self.seen: dict[Place, int] = {}

    def __call__(self, request: Request, act: Callable[[], Any]) -> Any:
        """See `Step`."""
        if request.kind in KINDS:
            place = place_of(request)
            self.seen[place] = self.seen.get(place, 0) + 1
        return act()


class LeftOut:
    """A step at which the operation of one place is left out."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def __call__(self, request: Request, act: Callable[[], Any]) -> Any:
        """See `Step`."""
        if request.kind == self._place.kind and place_of(request) == self._place:
            return None
        return act()


class OneStepLater:
    """A step at which what one place asks for is done right after the request that follows."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._waiting: list[Callable[[], Any]] = []

    def __call__(self, request: Request, act: Callable[[], Any]) -> Any:
        """See `Step`."""
        waiting, self._waiting = self._waiting, []
        if request.kind == self._place.kind and place_of(request) == self._place:
            self._waiting.append(act)
            answer = None
        else:
            answer = act()
        for late in waiting:
            # The file may have been closed: then the operation never happens.
            with contextlib.suppress(CompactlibError):
                late()
        return answer


VARIANTS: Mapping[str, Callable[[Place], Step]] = {"left out": LeftOut, "one step later": OneStepLater}
"""The ways in which one place makes a mistake."""

# A sync that is missing shows after a power failure alone.
_FINDS_SYNC = {"crashes": 120, "kills_and_power": 600, "crashes_of_recovery": 48}
_FINDS_NAME = {"kills": 30, "other_settings": 6, "crashes": 120, "kills_and_power": 60}
_LEADS_SOMEWHERE = {"kills": 20, "crashes": 24, "refusals": 12}


def places_of(driver: Driver[Any], folder: Path, *, lives: int, acts: int) -> Mapping[Place, Sequence[int]]:
    """The places that a store's ordinary lives and its recoveries lead to, each with the seeds of the lives, those that
    come to it most often first.

    Args:
        driver: of the store.
        folder: an existing folder, where worlds are made.
        lives: how many are tried.
        acts: how long each is.
    """
    found: dict[Place, list[tuple[int, int]]] = {}
    for seed in range(lives):
        places = Places()
        for hazard, histories in _LEADS_SOMEWHERE.items():
            check_hazards(_mistaken(driver, lambda: places), folder, hazards=[hazard],  # noqa: B023
                          effort=Effort(acts, histories, seed=seed))
        for place, times in places.seen.items():
            found.setdefault(place, []).append((-times, seed))
    return {place: [seed for _, seed in sorted(seeds)] for place, seeds in found.items()}


class _Mistaken:
    """A world whose store has a step before its disk: what this step leaves out, no hazard sees."""

    def __init__(self, world: World, step: Step) -> None:
        self._world = world
        self._step = step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    @property
    def files(self) -> Files:
        return FilesInFront(self._step, self._world.files)


def _mistaken(driver: Driver[Any], make_step: Callable[[], Step]) -> Driver[Any]:
    """The driver, whose stores have a new step before their disk at each opening."""
    made = copy.copy(driver)
    made.open = lambda world, settings: driver.open(  # type: ignore[method-assign]
        _Mistaken(world, make_step()), settings)  # type: ignore[arg-type]
    return made


def hazard_that_finds(variant: str, place: Place, driver: Driver[Any], folder: Path, *, seeds: Sequence[int],
                     acts: int, divisor: int = 1) -> str:
    """The first hazard that fails where this place makes a mistake; nothing if none does.

    Args:
        variant: of `VARIANTS`.
        place: of the library.
        driver: of a store with lives that reach it.
        folder: an existing folder, where worlds are made.
        seeds: of these lives.
        acts: how long each is.
        divisor: of the number of histories.
    """
    hazards = _FINDS_SYNC if place.kind in ("sync", "sync folder") else _FINDS_NAME
    for hazard, histories in hazards.items():
        for seed in seeds:
            try:
                check_hazards(_mistaken(driver, lambda: VARIANTS[variant](place)), folder, hazards=[hazard],
                              effort=Effort(acts, histories // divisor, seed=seed))
            except KeyboardInterrupt:
                raise
            except BaseException:  # also the kit's kill of a life
                return hazard
    return ""
