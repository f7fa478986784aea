"""`python -m headprune`."""

from headprune.cli import main

if __name__ == "__main__":
    main()
