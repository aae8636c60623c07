# SPDX-License-Identifier: Apache-2.0
from compactlib.indexset.index_set import IndexSet as IndexSet, IndexSetBuilder as IndexSetBuilder
