"""Wheel files: the archive, the install plan and RECORD.

The package knows neither locks nor recipes, so that the process that writes large layers starts in a tenth of a second.
"""
