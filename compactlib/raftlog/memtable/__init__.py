"""What was appended and is not yet in a segment: tables in memory, their replay and their flush."""
