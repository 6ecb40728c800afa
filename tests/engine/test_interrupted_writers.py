"""Threads and a main thread under a hail of Ctrl-C write to one file: none hangs, and no written number is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import random, signal, sys, threading, time
from pathlib import Path
from postroad.engine import Engine

engine = Engine(Path(sys.argv[1]))
engine.write(lambda tx: tx.connection.execute("CREATE TABLE number (n INTEGER PRIMARY KEY)"))
written, stop, main = [[] for _ in range(9)], threading.Event(), threading.main_thread().ident

def write(thread, n):
    def work(tx):
        tx.connection.execute("INSERT OR IGNORE INTO number VALUES (?)", (n,))
        return n

    assert engine.write(work, durable=random.random() < 0.8) == n
    written[thread].append(n)

def write_on(thread):
    n = thread << 32
    while not stop.is_set():
        write(thread, n := n + 1)

def interrupt():
    while not stop.wait(random.uniform(0.0002, 0.005)):
        signal.pthread_kill(main, signal.SIGINT)

threads = [threading.Thread(target=write_on, args=(thread,)) for thread in range(8)]
hail = threading.Thread(target=interrupt)
n, interrupts = 8 << 32, 0
for thread in (*threads, hail):
    thread.start()
while not stop.is_set():
    try:
        while interrupts < 500 or len(written[8]) < 500:
            write(8, n := n + 1)
        stop.set()
    except KeyboardInterrupt:
        interrupts += 1
while hail.is_alive():
    try:
        hail.join()
    except KeyboardInterrupt:
        pass
for thread in threads:
    thread.join()
stored = {n for n, in engine.read(lambda connection: connection.execute("SELECT n FROM number").fetchall())}
print(sum(map(len, written)), len({n for each in written for n in each} - stored))
"""


def test_writers_beside_an_interrupted_one_go_on_and_lose_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "file.db")]

    done = subprocess.run(command, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stderr
    written, lost = map(int, done.stdout.split())
    assert (written >= 500, lost) == (True, 0)
