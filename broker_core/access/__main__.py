"""Command line tool that hashes passwords and creates tokens for a policy document.

Run `python -m broker_core.access password` or `python -m broker_core.access token`.
"""

from __future__ import annotations

import argparse
import getpass
import sys

from broker_core.access.credential_hashes import MAX_SECRET_CHARACTERS, hash_password, hash_token, make_token
from broker_core.safe_text import print_block, print_line

_ABOUT = """\
Create the hash of a user's secret for a policy document.

  python -m broker_core.access password      \
reads a password (from the terminal or a line of standard input) and prints its hash
  python -m broker_core.access token         creates a token, and prints it once with its hash
"""


def main(arguments: list[str] | None = None) -> int:
    """Run one command. Returns the exit status, 0 for success."""
    parser = argparse.ArgumentParser(
        "python -m broker_core.access",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", choices=("password", "token"))
    if parser.parse_args(arguments).kind == "token":
        token = make_token()
        print_block(f"token {token}\nhash  {hash_token(token)}")
        return 0
    password = getpass.getpass() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
    if not 0 < len(password) <= MAX_SECRET_CHARACTERS:
        print_line(f"A password has 1 to {MAX_SECRET_CHARACTERS} characters.", sys.stderr)
        return 1
    print_line(hash_password(password))
    return 0


if __name__ == "__main__":
    sys.exit(main())
