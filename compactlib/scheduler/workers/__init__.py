# SPDX-License-Identifier: Apache-2.0
"""Workers: they poll for jobs, run them in threads, renew their leases and report; core without I/O, and transport."""
