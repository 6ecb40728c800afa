"""The keys of a while, beside a plain list that does the same slowly."""

from __future__ import annotations

from hypothesis import given, strategies as st

from postroad.bus.deduplication import RecentKeys

MOST = 3
WINDOW = 5

_STEPS = st.lists(st.tuples(st.sampled_from(["add", "discard", "wait"]), st.sampled_from("abcdef")), max_size=60)


@given(_STEPS)
def test_it_keeps_what_a_list_of_the_newest_would_keep(steps: list[tuple[str, str]]) -> None:
    keys, model, now = RecentKeys(MOST), list[tuple[str, float]](), 0

    for step, key in steps:
        if step == "wait":
            now += 1
            keys.expire(now)
            model = [each for each in model if each[1] > now]
        else:
            model = [each for each in model if each[0] != key]
            if step == "add":
                model = [*model, (key, now + WINDOW)][-MOST:]
                keys.add(key, now + WINDOW)
            else:
                keys.discard(key)

        assert {key for key in "abcdef" if key in keys} == {key for key, _ in model}
        assert len(keys) == len(model)


def test_marking_one_key_again_and_again_keeps_no_more_than_a_few_marks() -> None:
    keys = RecentKeys(MOST)
    keys.add("first", WINDOW)

    for _ in range(1_000):
        keys.add("again", WINDOW)

    assert len(keys._line) <= 2 * MOST
    assert "first" in keys
