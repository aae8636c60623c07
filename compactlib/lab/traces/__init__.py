# SPDX-License-Identifier: Apache-2.0
"""Operations: from traces, or made by a workload."""
