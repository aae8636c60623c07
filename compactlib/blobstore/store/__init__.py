# SPDX-License-Identifier: Apache-2.0
"""What a host calls: `BlobStore` and `BlobReader`, and the operations that they are made of."""
