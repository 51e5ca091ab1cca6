"""`python -m envbuild`."""

from envbuild.cli import main

if __name__ == "__main__":
    main()
