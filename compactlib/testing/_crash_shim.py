# SPDX-License-Identifier: Apache-2.0
# ruff: noqa
# mypy: ignore-errors
from compactlib.testing.crash.harness import explore, explore_recovery as _r
from compactlib.testing.crash.kills import explore_kills as _k
from compactlib.testing.crash.recorder import record as record
def explore_crashes(recording, check, *, limit_per_point=128, seed=0):
    return explore(recording, check, limit_per_point=limit_per_point).distinct
def explore_recovery(recording, recover, check, *, recoveries=100, limit_per_point=32, seed=0):
    return _r(recording, recover, check, recoveries=recoveries, limit_per_point=limit_per_point).distinct
def explore_kills(first, successor, check, *, max_states=None, limit_per_point=16, seed=0):
    return _k(first, successor, check, max_states=max_states, limit_per_point=limit_per_point).distinct
