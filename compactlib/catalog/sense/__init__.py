"""What is still needed: by transactions, rebalances, index builds, pins, published versions."""
