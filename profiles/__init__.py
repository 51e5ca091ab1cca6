"""The profiles' data, and the program that refreshes it; the data alone is part of the installed package."""
