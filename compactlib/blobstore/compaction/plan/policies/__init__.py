# SPDX-License-Identifier: Apache-2.0
"""The policies that come with the library, one a file; the contract is `compactlib.blobstore.compaction.plan.policy`.

| policy | takes | use it when |
| --- | --- | --- |
| `StatsBased` | the range that copies least for each segment freed | the default |
| `CompactAll` | everything that may be taken | a full clean-up matters more than what it writes |
| `Hybrid` | what one policy takes, and on a schedule what a thorough one does | both at once |
| `Greedy` | the emptiest segments, wherever they lie | garbage is scattered |
| `CostBenefit` | empty and old ones first | some data is hot and some is cold |
| `DChoices` | the emptiest of a few drawn at random | there are very many segments |
| `ExpiryForecast` | the emptiest that will not be emptier soon | blobs have a time to live |
| `DecliningCost` | those whose price falls least by waiting, as far as is known | many blobs have a time to live |
| `CopyBudget` | what an allowance of copied bytes frees most with | compaction may only write so much |
"""
