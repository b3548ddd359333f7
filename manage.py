#!/usr/bin/env python
"""Entry point of all management commands of Sluice."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the management command of the command line."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.project.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
