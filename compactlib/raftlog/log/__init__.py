"""One log by itself: `SegmentLog`, `LogReader`, and the parts that they hold."""
