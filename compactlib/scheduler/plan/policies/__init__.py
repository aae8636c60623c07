# SPDX-License-Identifier: Apache-2.0
"""The assignment policies that come with the library, one a file."""
