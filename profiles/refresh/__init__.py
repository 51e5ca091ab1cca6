"""The program that reads the frameworks' wheels on the package index and writes the profiles from them."""
