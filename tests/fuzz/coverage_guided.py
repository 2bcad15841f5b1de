"""Coverage-guided fuzzing of a reader with atheris.

``python tests/fuzz/coverage_guided.py READER [options of libFuzzer]``

`make fuzz` calls it. The functions are those that the properties and the replay of the corpus call.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Fuzz until the limit that the options state."""
    import atheris  # only `make fuzz` installs it

    sys.path.insert(0, str(Path(__file__).parents[1]))
    with atheris.instrument_imports(include=["rankfall", "fuzz"]):
        from fuzz.readers import COVERAGE_GUIDED
    read = COVERAGE_GUIDED[sys.argv.pop(1)]
    with tempfile.TemporaryDirectory() as folder:
        atheris.Setup(sys.argv, lambda content: read(content, Path(folder)))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
