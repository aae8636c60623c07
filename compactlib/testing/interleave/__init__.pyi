# SPDX-License-Identifier: Apache-2.0
from compactlib.testing.interleave.explore import (
    explore_schedules as explore_schedules,
    replay_schedule as replay_schedule,
    sample_schedules as sample_schedules,
)
from compactlib.testing.interleave.stage import Stage as Stage, Step as Step
from compactlib.testing.interleave.stores import (
    SteppedObjects as SteppedObjects,
    SteppedStore as SteppedStore,
    take_step as take_step,
)
