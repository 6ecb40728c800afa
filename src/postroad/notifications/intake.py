"""Takes messages from one queue, has them judged on a few threads, and settles each by itself."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from postroad.clock import SYSTEM_CLOCK
from postroad.errors import PostroadError, StaleReceipt
from postroad.notifications.telling import Teller
from postroad.notifications.verdicts import Ack, Again, Bury, Defer, Verdict
from postroad.queues import AckResult, Delivery, OutgoingMessage, Queue
from postroad.queues.acking import Acker
from postroad.queues.burying import DeadLetters, describe
from postroad.queues.holding import Held, Holdings
from postroad.queues.housekeeping import Housekeeper
from postroad.queues.tally import Tally

_LONGEST_COVER = 43_200.0
_NOT_BURIED_SECONDS = 300.0
Judge = Callable[[Sequence[Delivery]], Sequence[Verdict]]
"""Says of each message what becomes of it."""


class Intake:
    """The consumer of one queue. Threads come when there is work and go when there is none."""

    def __init__(
        self,
        queue: Queue,
        judge: Judge,
        *,
        batch: int,
        concurrency: int,
        together: int = 1,
        visibility: float | None,
        dead_letters: DeadLetters,
        tally: Tally,
        teller: Teller,
    ) -> None:
        self.queue = queue
        self._judge, self._batch, self._concurrency, self._together = judge, batch, concurrency, together
        self._visibility = queue.traits.visibility if visibility is None else visibility
        self._dead_letters, self._tally, self._teller = dead_letters, tally, teller
        self._acker = Acker(SYSTEM_CLOCK, teller.settle_failed)
        self._holdings = Holdings(
            visibility=self._visibility, most=_LONGEST_COVER, clock=SYSTEM_CLOCK, failed=teller.settle_failed
        )
        keeper = Housekeeper(SYSTEM_CLOCK, [self._acker, self._holdings], failed=teller.chore_failed)
        self._acker.wake = self._holdings.wake = keeper.wake
        self._changed = threading.Condition()
        self._waiting: deque[Held] = deque()
        self._in_hand: dict[int, Held] = {}
        self._takers = 0
        """Threads that will look for another message before they end."""
        self._threads = 0
        self._stopping = False
        self.database_failed = False
        """Whether the database was at fault since this was last set to False."""

    def resume(self) -> None:
        """Work again after a stop."""
        self._stopping = False

    def receive(self, wait: float, *, most: int | None = None) -> int:
        """Take what comes within `wait` seconds and have it judged; how many messages came."""
        deliveries = self.queue.receive(max_messages=most or self._batch, wait=wait, visibility=self._visibility)
        helds = self._holdings.take(self.queue, deliveries)
        with self._changed:
            late = helds if self._stopping else []
            self._waiting.extend(() if late else helds)
            portions = -(-len(self._waiting) // self._together)
            for _ in range(min(self._concurrency - self._takers, portions)):
                self._takers += 1
                self._threads += 1
                threading.Thread(target=self._work, name="postroad-notifications", daemon=True).start()
        self._give_back(late)
        return len(deliveries)

    def wait_for_room(self, timeout: float) -> bool:
        """Whether a message would be begun on at once; waits for that up to `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, timeout)

    def wait_until_idle(self, timeout: float | None = None) -> bool:
        """Whether all that came is settled; waits for it."""
        with self._changed:
            idle = self._changed.wait_for(lambda: not self._threads, timeout)
        self._acker.flush()
        return idle

    def stop(self, timeout: float) -> None:
        """Begin on nothing more; what is not done within `timeout` seconds is given back for others."""
        deadline = time.monotonic() + timeout
        with self._changed:
            self._stopping = True
            unbegun = list(self._waiting)
            self._waiting.clear()
        self._give_back(unbegun)
        if not self.wait_until_idle(max(0.0, deadline - time.monotonic())):
            with self._changed:
                late, self._in_hand = list(self._in_hand.values()), {}
            self._teller.stop_timed_out(len(late))
            self._give_back(late)

    def _work(self) -> None:
        while helds := self._begin():
            self._handle(helds)
        self._acker.flush()
        with self._changed:
            self._threads -= 1
            self._changed.notify_all()

    def _handle(self, helds: Sequence[Held]) -> None:
        for held in helds:
            self._holdings.begin(held)
        # A message whose lease was lost while it waited is somebody else's by now.
        ours = [held for held in helds if not held.lost]
        verdicts = dict(zip(map(id, ours), self._judged([held.delivery for held in ours]), strict=True))
        ended = [held for held in helds if self._end(held)]
        self._holdings.let_go(ended)
        for held in ended:
            if id(held) in verdicts:
                self._settle(held.delivery, verdicts[id(held)])

    def _begin(self) -> list[Held]:
        """The next messages for one thread, those that are judged together; none ends it."""
        with self._changed:
            helds = [self._waiting.popleft() for _ in range(min(self._together, len(self._waiting)))]
            # Said in the same breath: who receives next must not count on this thread any more.
            self._takers -= not helds
            self._in_hand.update({id(held): held for held in helds})
            self._changed.notify_all()
            return helds

    def _end(self, held: Held) -> bool:
        """Whether the message is still ours to settle."""
        with self._changed:
            return self._in_hand.pop(id(held), None) is not None

    def _judged(self, deliveries: Sequence[Delivery]) -> Sequence[Verdict]:
        try:
            return self._judge(deliveries) if deliveries else ()
        except Exception as error:
            return [Again(describe(error), _NOT_BURIED_SECONDS)] * len(deliveries)

    def _settle(self, delivery: Delivery, verdict: Verdict) -> None:
        try:
            match verdict:
                case Ack(outcome):
                    self._acker.add(self.queue, delivery)
                    self._teller.settled(outcome, delivery)
                case Again():
                    self._release(delivery, verdict)
                case Defer(after):
                    self._defer(delivery, after)
                case Bury(reason, error):
                    self._bury(delivery, reason, error)
        except Exception as error:
            # Unsettled, it comes back by itself when its visibility ends.
            self._teller.settle_failed(delivery, error)

    def _release(self, delivery: Delivery, again: Again) -> None:
        self.database_failed |= again.database
        self._tally.add("retried")
        self._teller.retried(delivery, again.error, again.after)
        self._told(delivery, self.queue.release([delivery], after=again.after, error=again.error))

    def _defer(self, delivery: Delivery, after: float) -> None:
        (sent,) = self.queue.send([OutgoingMessage(delivery.body, delivery.attributes, delay=after)])
        if not sent.ok:
            self._release(delivery, Again(f"SendFailed: {sent.error}", after))
            return
        self._tally.add("deferred")
        self._acker.add(self.queue, delivery)
        self._teller.deferred(delivery, after)

    def _bury(self, delivery: Delivery, reason: str, error: str) -> None:
        if not self._dead_letters.bury(self.queue, delivery, reason=reason, error=error):
            # Where there are no dead letters it stays in the queue: nothing is deleted unseen.
            self._release(delivery, Again(error, _NOT_BURIED_SECONDS))
            return
        self._tally.add("dead_lettered")
        self._teller.dead_lettered(delivery, reason, error)

    def _give_back(self, helds: Sequence[Held]) -> None:
        self._holdings.let_go(helds)
        deliveries = [held.delivery for held in helds if not held.lost]
        if not deliveries:
            return
        try:
            results = self.queue.release(deliveries, after=0.0)
        except PostroadError as error:
            results = [AckResult(ok=False, error=error) for _ in deliveries]
        for delivery, result in zip(deliveries, results, strict=True):
            self._told(delivery, [result])
        self._teller.released(deliveries)

    def _told(self, delivery: Delivery, results: Sequence[AckResult]) -> None:
        if not results[0].ok:
            self._teller.settle_failed(delivery, results[0].error or StaleReceipt("the lease was lost"))
