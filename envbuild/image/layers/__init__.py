"""Layers: which wheels share one, their tar, its compression, and the cache of those that exist."""
