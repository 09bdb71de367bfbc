"""From a model card and a step to bytes, FLOPs, limits and predicted milliseconds; and back from a run to causes."""
