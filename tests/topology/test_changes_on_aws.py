"""What changes in place on emulated AWS."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.topology.conftest import Aws
from tests.topology.shop import alarm, orders, rule, shop, table

from postroad.topology import BucketDecl, IndexDecl, Resource, StreamDecl, SubscriptionDecl, apply, drift

pytestmark = pytest.mark.aws
CHANGES: dict[str, tuple[str, Callable[[str], Resource]]] = {
    "a filter": ("filter", lambda m: SubscriptionDecl(f"{m}-news", f"{m}-orders", filter={"kind": ("z",)})),
    "no filter": ("filter", lambda m: SubscriptionDecl(f"{m}-news", f"{m}-orders")),
    "shards": ("shards", lambda m: StreamDecl(f"{m}-clicks", shards=2)),
    "retention": ("retention_hours", lambda m: StreamDecl(f"{m}-clicks", retention_hours=48)),
    "another ttl": ("ttl_attribute", lambda m: table(m, ttl="ends")),
    "no ttl": ("ttl_attribute", lambda m: table(m, ttl=None)),
    "an index": ("indexes.by-day", lambda m: table(m, IndexDecl("by-day", "day"))),
    "expiry": ("expire_days", lambda m: BucketDecl(f"{m}-blobs", expire_days=7)),
    "no expiry": ("expire_days", lambda m: BucketDecl(f"{m}-blobs")),
    "a threshold": ("threshold", lambda m: alarm(m, threshold=7)),
    "a tag": ("tags", lambda m: orders(m, team="other")),
    "encryption": ("encryption", lambda m: orders(m, encryption="none")),
    "a pattern": ("pattern", lambda m: rule(m, pattern={"detail-type": ["other"]})),
    "attempts": ("target", lambda m: rule(m, max_attempts=9)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_settings_are_changed_in_place(aws: Aws, unique: Callable[[str], str], what: str) -> None:
    field, changed = CHANGES[what]
    mark = unique("t")
    apply(shop(mark), aws.backend)
    after = shop(mark, changed(mark))

    found = drift(after, aws.backend)
    done = apply(after, aws.backend)

    assert [each.field for each in found] == [field]
    assert [(action.verb, tuple(action.changes)) for action in done.applied] == [("update", (field,))]
    assert done.failed == ()
    assert drift(after, aws.backend) == ()
