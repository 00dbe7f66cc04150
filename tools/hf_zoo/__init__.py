"""Tiny models of every architecture of transformers, to try regard's attentions in."""
