"""vLLM's Marlin kernels at the shapes of a Kimi-K2.5 shard."""
