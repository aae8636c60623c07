"""One round of the cluster, without I/O: node, participant, coordinator, election, messages."""
