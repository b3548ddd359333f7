"""A writing process is killed at random times: records reported as durable are there, once and in order."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

from broker_core.journal.journal import JournalOptions

from .support import open_journal, read_all

ROOT = Path(__file__).parents[3]
WRITER = """
import sys
from pathlib import Path
from broker_core.batch import Batch, build_single_topic_batch
from broker_core.journal.journal import Journal, JournalOptions
journal = Journal.open(Path(sys.argv[1]) / "journal", "sluice-t", Path(sys.argv[1]) / "archive",
                       JournalOptions(64 * 1024, 1))
while True:
    group = []
    first = journal.next_sequence
    for count in (1, 20, 3):
        bodies = [b"%d:" % (first + n) + b"." * 300 for n in range(count)]
        batch = Batch.parse(build_single_topic_batch("p", "t", bodies, first))
        batch.stamp(origin=journal.origin, epoch=journal.epoch, first_sequence=first, accepted_at=first)
        group.append(batch)
        first += count
    journal.write(group)
    journal.sync()
    print(journal.durable_sequence, flush=True)
    if journal.durable_sequence % 10 < 3:
        journal.preallocate()
"""


def test_killed_at_random_moments(tmp_path):
    told = 0
    chance = random.Random(7)
    for _ in range(6):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert writer.stdout is not None
        for _ in range(chance.randint(1, 60)):
            writer.stdout.readline()
        writer.kill()
        rest, _ = writer.communicate()
        told = max([told, *(int(line) for line in rest.split(b"\n")[:-1])])
        journal = open_journal(tmp_path, JournalOptions(64 * 1024, 1))
        assert journal.recovery.quarantined == []
        assert journal.next_sequence > told
        assert read_all(journal) == list(range(1, journal.next_sequence))
        assert journal.publishers.numbers()["p"] == journal.next_sequence - 1
        told = journal.next_sequence - 1
        journal.close()
