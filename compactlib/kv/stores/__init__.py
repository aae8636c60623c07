# SPDX-License-Identifier: Apache-2.0
"""The stores behind the protocol; none of them knows another one."""
