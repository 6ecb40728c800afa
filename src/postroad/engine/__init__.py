"""The embedded engine: one SQLite file that many threads and processes write, and its wake-ups."""

from postroad.engine.compaction import Compaction as Compaction, compact as compact
from postroad.engine.engine import Engine as Engine
from postroad.engine.failures import translate as translate
from postroad.engine.file import (
    APPLICATION_ID as APPLICATION_ID,
    FIXED_VERSION as FIXED_VERSION,
    Schema as Schema,
    in_transaction as in_transaction,
    is_open as is_open,
)
from postroad.engine.read_only import ReadOnlyFile as ReadOnlyFile, may_write as may_write
from postroad.engine.transaction import (
    Transaction as Transaction,
    every as every,
    moment as moment,
    one as one,
    run_many as run_many,
    text_of as text_of,
)
from postroad.engine.wakeup import Listener as Listener
