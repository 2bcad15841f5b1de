"""``python -m rankfall`` is the command line."""

from rankfall.cli import main

if __name__ == "__main__":
    main()
