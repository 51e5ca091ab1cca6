"""Manifest: what a training run really had, its schema, and its reader."""
