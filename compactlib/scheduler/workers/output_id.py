"""Names for what a job writes: the same for the same assignment, and never used for anything else."""

from __future__ import annotations

import hashlib

from compactlib.arguments import refuses_misfits
from compactlib.scheduler.model.ulid import ulid_seconds
from compactlib.scheduler.model.values import JobPlan

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PURPOSE = b"compactlib scheduler output 1"
_RANDOM_BITS = 80


@refuses_misfits
def output_block_id(plan: JobPlan, token: int, tenant: str | None = None, number: int = 0) -> str:
    """The id of a block that the job writes: a ULID with the time of the first source (0 if that has none).

    The rest of it is a hash of the plan's sources, level and shard, of the token, of the output's tenant and of its
    number. So whoever repeats an assignment writes the same ids, and overwrites its own outputs instead of doubling
    the data; and two workers who were given the same job after each other can never overwrite each other's outputs, nor
    can a late deletion of one's outputs meet the other's. Upstream leaves the token out (notes 1.11).

    Args:
        plan: the job's plan.
        token: the token that the job was assigned with.
        tenant: the output's; the plan's if not given. A job over several tenants' blocks writes one block for each.
        number: which of several outputs of one tenant.
    """
    digest = hashlib.sha256(_PURPOSE)
    for part in (plan.tenant if tenant is None else tenant, str(plan.shard), str(plan.compaction_level), str(token),
                 str(number), *plan.source_blocks):
        text = part.encode("utf-8", "surrogatepass")
        digest.update(len(text).to_bytes(8, "little") + text)
    seconds = ulid_seconds(plan.source_blocks[0]) if plan.source_blocks else 0.0
    value = round(max(seconds, 0.0) * 1000) << _RANDOM_BITS | int.from_bytes(digest.digest()[:10], "big")
    return "".join(_ALPHABET[value >> shift & 31] for shift in range(125, -1, -5))
