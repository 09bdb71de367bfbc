"""A scripted OpenAI-compatible endpoint: exact timing, every fault a client must survive, no model."""
