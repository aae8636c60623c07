# SPDX-License-Identifier: Apache-2.0
"""Other names of `compactlib.testing.promises`, until the last user has moved."""

from compactlib.testing.promises import (
    ConformanceKit as ConformanceKit,
    Mismatch as Mismatch,
    PromiseBroken as PromiseBroken,
    error_from as error_from,
    expect as expect,
    run_kit as run_kit,
    same as same,
    shown as shown,
)
