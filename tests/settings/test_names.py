from __future__ import annotations

import pytest

from postroad.settings import nearest


@pytest.mark.parametrize(
    ("name", "meant"),
    [("prot", "port"), ("ordrs", "orders"), ("Orders", "orders"), ("orders-dql", "orders-dlq"), ("orderss", "orders")],
)
def test_a_slip_of_one_or_two_letters_finds_the_name_that_was_meant(name: str, meant: str) -> None:
    assert nearest(name, ["port", "orders", "orders-dlq", "payments"]) == meant


@pytest.mark.parametrize("name", ["", "q", "xy", "something-else"])
def test_a_name_unlike_all_others_has_no_nearest(name: str) -> None:
    assert nearest(name, ["port", "orders"]) is None


def test_the_closest_of_several_wins() -> None:
    assert nearest("order", ["ordeals", "orders", "borders"]) == "orders"
