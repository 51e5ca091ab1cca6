"""`python -m envbuild`."""
