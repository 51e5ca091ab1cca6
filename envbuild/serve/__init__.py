"""Serving images: a model's training image, by digest, with layers on top."""
