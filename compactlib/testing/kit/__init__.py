"""What every check is made of: reports of a breach, examples, actors."""
