"""The common parts of the conformance kits: reports of a breach, Hypothesis examples, actors."""
