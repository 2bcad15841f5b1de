"""Compare the locked versions with a database of known vulnerabilities, by pip-audit.

``make audit`` calls it. pip-audit says that it knows no vulnerability also if its database has no entry for a package,
or cannot be reached through a mirror of the package index. So each database is first asked about a version with a
published vulnerability. Exit codes: 0 no vulnerability is known, 1 some are, 2 no database could be asked.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

LOCK = Path(__file__).parents[1] / "requirements-dev.lock"
DATABASES = ("pypi", "osv")
VULNERABLE = "idna==3.6"  # CVE-2024-3651


def main() -> int:
    """Print the vulnerabilities and return the exit code."""
    reasons = []
    for database in DATABASES:
        answer = _ask(database, f"{VULNERABLE}\n")
        if "idna" not in answer.stdout or "3.6" not in answer.stdout or answer.returncode != 1:
            reasons.append(f"{database}: it does not know the vulnerability of {VULNERABLE}{_last_line(answer.stderr)}")
            continue
        answer = _ask(database, LOCK.read_text())
        sys.stdout.write(answer.stdout + answer.stderr)
        return answer.returncode
    sys.stderr.write("no database of vulnerabilities could be asked, so nothing is known about this environment\n")
    sys.stderr.writelines(f"  {reason}\n" for reason in reasons)
    return 2


def _ask(database: str, requirements: str) -> subprocess.CompletedProcess[str]:
    """Run pip-audit; a package that the database does not have is an error."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "requirements.txt"
        path.write_text(requirements)
        command = [sys.executable, "-m", "pip_audit", "--vulnerability-service", database, "--disable-pip", "--strict"]
        command += ["--no-deps", "--progress-spinner", "off", "--requirement", str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=False)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return f" ({lines[-1][:200]})" if lines else ""


if __name__ == "__main__":
    sys.exit(main())
