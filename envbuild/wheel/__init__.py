"""Wheel files: the archive, the install plan and RECORD. Knows neither locks nor recipes, which are slow to import."""
