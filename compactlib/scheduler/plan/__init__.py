# SPDX-License-Identifier: Apache-2.0
"""Planning, done by the leader: which blocks become a job, and which jobs a worker is given."""
