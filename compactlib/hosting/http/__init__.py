# SPDX-License-Identifier: Apache-2.0
"""A scheduler over HTTP: `application` answers requests under any ASGI server, `client` is a worker's transport.

`docs/scheduler.md` has the requests, `docs/security.md` the bounds.
"""
