# SPDX-License-Identifier: Apache-2.0
"""A scheduler over HTTP: `application` answers requests, `server` listens, `client` is a worker's transport.

`docs/scheduler.md` has the requests, `docs/security.md` the bounds.
"""
