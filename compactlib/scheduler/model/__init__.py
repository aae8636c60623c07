# SPDX-License-Identifier: Apache-2.0
"""The values of the scheduler: blocks, jobs, polls, updates, and what an assignment sees."""
