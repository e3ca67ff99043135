"""The correctness gate: whether an engine, exactly as it serves, computes what its model says."""
