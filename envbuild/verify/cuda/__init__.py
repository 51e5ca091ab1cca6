"""Whether the CUDA libraries that a framework opens are found in an image."""
