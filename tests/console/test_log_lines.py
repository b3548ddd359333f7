"""Logs of console, API and workers: one line per record, whatever clients and browsers send."""

from __future__ import annotations

import copy
import io
import logging.config

from django.conf import settings

ATTACK = "board\x1b]0;owned\x07\r\n2026-11-28 INFO forged\u2028\u202e"


def test_a_name_from_outside_forges_no_line_of_the_log() -> None:
    """Only the stream of the logging settings is replaced."""
    output, known = io.StringIO(), copy.deepcopy(settings.LOGGING)
    known["root"] = {}
    known["loggers"] = {"from-outside": {"handlers": ["console"], "level": "INFO"}}
    known["handlers"]["console"]["stream"] = output
    known["incremental"] = False
    logging.config.dictConfig(known | {"disable_existing_loggers": False})
    try:
        logging.getLogger("from-outside").warning("client %s is away", ATTACK)
    finally:
        logging.config.dictConfig(settings.LOGGING)
    (line,) = output.getvalue().splitlines()
    assert line.isprintable() and "forged" in line
