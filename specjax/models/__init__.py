"""Flax NNX modules and the functional LanguageModel the core sees."""
