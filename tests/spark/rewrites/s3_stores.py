# SPDX-License-Identifier: Apache-2.0
"""A bucket on a real S3 server, as a task on a worker opens it."""

from __future__ import annotations

from typing import Any

import attrs

from compactlib.objects import RemoteObjects


@attrs.frozen
class OpenBucket:
    """Opens a bucket, here and on the workers.

    Attributes:
        address: the server's.
        name: the bucket's.
    """

    address: str
    name: str

    def bucket(self) -> Any:
        """As obstore sees it."""
        from obstore.store import S3Store

        return S3Store(self.name, endpoint=self.address, region="us-east-1", client_options={"allow_http": True},
                       conditional_put="etag", virtual_hosted_style_request=False, access_key_id="S3RVER",
                       secret_access_key="S3RVER", retry_config={"max_retries": 0})

    def __call__(self) -> RemoteObjects:
        # What the bucket can do was found out once, when it was made.
        return RemoteObjects(self.bucket(), conditions="trusted")
