"""Debian packages that a run had loaded libraries from, as one layer between the base and the wheels."""
