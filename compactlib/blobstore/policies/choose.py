"""Policies by name, for configurations and command lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from random import Random
from types import MappingProxyType
from typing import Any

from compactlib.blobstore.config import BlobStoreConfig
from compactlib.blobstore.errors import UnknownPolicy
from compactlib.blobstore.policies.compact_all import CompactAll
from compactlib.blobstore.policies.copy_budget import CopyBudget
from compactlib.blobstore.policies.cost_benefit import CostBenefit
from compactlib.blobstore.policies.d_choices import DChoices
from compactlib.blobstore.policies.expiry_forecast import ExpiryForecast
from compactlib.blobstore.policies.greedy import Greedy
from compactlib.blobstore.policies.hybrid import Hybrid
from compactlib.blobstore.policies.stats_based import StatsBased
from compactlib.blobstore.policy import CompactionPolicy
from compactlib.errors import InvalidInput

_BY_NAME: Mapping[str, Callable[..., CompactionPolicy]] = MappingProxyType({
    each.name: each
    for each in (CompactAll, CopyBudget, CostBenefit, DChoices, ExpiryForecast, Greedy, Hybrid, StatsBased)
})

_WEEK_SECONDS = 7 * 86_400.0

POLICY_NAMES: tuple[str, ...] = tuple(sorted(_BY_NAME))
"""The names that `policy_named` knows."""


def policy_named(name: str, **settings: Any) -> CompactionPolicy:
    """The policy of this name; upper and lower case are the same, and so are `-` and `_`.

    Args:
        name: one of `POLICY_NAMES`.
        settings: passed on to the policy; `d_choices` needs `random`.

    Raises:
        UnknownPolicy: there is none of this name.
        InvalidInput: it has no such setting, lacks one, or refuses the value.
    """
    make = _BY_NAME.get(_folded(name))
    if make is None:
        known = ", ".join(POLICY_NAMES)
        raise UnknownPolicy(f"there is no policy {name!r}; take one of {known}", name=name, known=known)
    try:
        return make(**settings)
    except TypeError as error:
        raise InvalidInput(f"policy {_folded(name)} cannot be made of these settings ({error})") from None


def policy_of(config: BlobStoreConfig, *, random: Random | None = None) -> CompactionPolicy:
    """The policy that a store's configuration names, with the settings that the configuration holds for it.

    Args:
        config: the store's configuration.
        random: what `d_choices` draws from; default one seeded with 0.

    Raises:
        UnknownPolicy: `compaction_policy` names none.
        InvalidInput: it is `expiry_forecast`, and the configuration forbids the buckets that know what will die when.
    """
    gate: dict[str, Any] = {"min_used_fraction": config.min_used_fraction}
    reclaiming = {**gate, "min_reclaimed_segments": config.min_reclaimed_segments}
    name = _folded(config.compaction_policy)
    if name == CompactAll.name:
        return _compact_all(config)
    if name == StatsBased.name:
        return _stats_based(config)
    if name == Hybrid.name:
        return Hybrid(usual=_stats_based(config), thorough=_compact_all(config),
                      every_seconds=config.full_compaction_interval_seconds,
                      spread_seconds=config.full_compaction_stagger_seconds)
    if name == DChoices.name:
        return DChoices(**reclaiming, random=Random(0) if random is None else random)
    if name == ExpiryForecast.name and not bucket_count_of(config):
        raise InvalidInput("the policy expiry_forecast has to know what dies when, and stats_bucket_count is 0; leave "
                           "it out, or give the number of buckets to look ahead")
    return policy_named(name, **reclaiming)


def bucket_count_of(config: BlobStoreConfig) -> int:
    """How many time buckets the statistics of a store keep: as configured, or as many as its policy needs.

    A look at a store comes once a week by default, when hardly anything is left to be looked up cheaply; so only a
    policy that looks ahead gets buckets unasked.
    """
    if config.stats_bucket_count is not None:
        return config.stats_bucket_count
    if _folded(config.compaction_policy) != ExpiryForecast.name:
        return 0
    return math.ceil(_WEEK_SECONDS / config.stats_bucket_seconds)


def _compact_all(config: BlobStoreConfig) -> CompactAll:
    return CompactAll(min_used_fraction=config.min_used_fraction,
                      skip_valid="ends" if config.skip_valid_ends else "none")


def _stats_based(config: BlobStoreConfig) -> StatsBased:
    return StatsBased(
        min_used_fraction=config.min_used_fraction, min_reclaimed_segments=config.min_reclaimed_segments,
        weight_on_benefit=config.weight_on_benefit, min_cost_fraction=config.min_cost_fraction,
        middle_range_interval_seconds=config.middle_range_interval_seconds,
        middle_range_max_valid_fraction=config.middle_range_max_valid_fraction)


def _folded(name: str) -> str:
    return name.strip().lower().replace("-", "_")
