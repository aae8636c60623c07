"""Crash states: every prefix of what was written, every loss that is allowed, and kills."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compactlib._lazy import load_lazily

if TYPE_CHECKING:
    from compactlib.testing.crash.harness import (
        Check,
        CrashFailure,
        CrashReport,
        CrashState,
        Recording,
        RecordingFiles,
        Recover,
        explain,
        explore,
        explore_recovery,
        record,
        replay,
    )

__all__ = [
    "Check",
    "CrashFailure",
    "CrashReport",
    "CrashState",
    "Recording",
    "RecordingFiles",
    "Recover",
    "explain",
    "explore",
    "explore_recovery",
    "record",
    "replay",
]

load_lazily(__name__, {
    ".harness": ("Check", "CrashFailure", "CrashReport", "CrashState", "Recording", "RecordingFiles", "Recover",
                 "explain", "explore", "explore_recovery", "record", "replay"),
})
