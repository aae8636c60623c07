from compactlib.indexset.index_set import IndexSet as IndexSet, IndexSetBuilder as IndexSetBuilder
