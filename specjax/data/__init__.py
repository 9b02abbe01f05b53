"""Tokenizers, corpora and prompt sets."""
