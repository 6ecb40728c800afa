"""All rows, in the order in which they are measured."""

from __future__ import annotations

from benchmarks import codec, embedded, growth, processes, sqs
from benchmarks.frame import Row

ROWS: tuple[Row, ...] = (*codec.ROWS, *embedded.ROWS, *growth.ROWS, *processes.ROWS, *sqs.ROWS)
