"""Weight and KV formats: INT4 groups, FP8, INT8 KV; readers and writers of the ecosystem's checkpoints."""
