"""The layered layout, with graphs of any shape."""

from __future__ import annotations

import re
from itertools import combinations

from hypothesis import given, settings, strategies as st

from postroad.dashboard.graphs import Box, Layout, Size, layered

Pair = tuple[str, str]


@st.composite
def graphs(draw: st.DrawFn, *, acyclic: bool = True, most: int = 30) -> tuple[list[str], list[Pair]]:
    """A graph; in an acyclic one each edge goes from an earlier node to a later one."""
    nodes = [f"n{number}" for number in range(draw(st.integers(0, most)))]
    if not nodes:
        return [], []
    ends = st.integers(0, len(nodes) - 1)
    pairs = draw(st.lists(st.tuples(ends, ends), max_size=3 * most))
    if acyclic:
        pairs = [(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]]
    return draw(st.permutations(nodes)), [(nodes[a], nodes[b]) for a, b in pairs]


def overlap(one: Box, other: Box) -> bool:
    return (
        one.x < other.x + other.width
        and other.x < one.x + one.width
        and one.y < other.y + other.height
        and other.y < one.y + one.height
    )


def check_boxes(layout: Layout, nodes: list[str]) -> None:
    assert [box.id for box in layout.boxes] == nodes
    assert not [(a.id, b.id) for a, b in combinations(layout.boxes, 2) if overlap(a, b)]
    for box in layout.boxes:
        assert box.x >= 0
        assert box.y >= 0
        assert box.x + box.width <= layout.width
        assert box.y + box.height <= layout.height


@given(graphs())
def test_no_boxes_overlap_and_every_edge_goes_from_left_to_right(graph: tuple[list[str], list[Pair]]) -> None:
    nodes, edges = graph

    layout = layered(nodes, edges)

    check_boxes(layout, nodes)
    assert [(edge.source, edge.target) for edge in layout.edges] == list(dict.fromkeys(edges))
    at = {box.id: box for box in layout.boxes}
    for edge in layout.edges:
        source, target = at[edge.source], at[edge.target]
        assert not edge.is_back
        assert edge.start == (source.x + source.width, source.middle)
        assert edge.end == (target.x, target.middle)
        assert edge.end[0] > edge.start[0]


@given(graphs(acyclic=False))
def test_a_graph_with_cycles_is_drawn_too(graph: tuple[list[str], list[Pair]]) -> None:
    nodes, edges = graph

    layout = layered(nodes, edges)

    check_boxes(layout, nodes)
    assert [(edge.source, edge.target) for edge in layout.edges] == [(a, b) for a, b in dict.fromkeys(edges) if a != b]
    for edge in layout.edges:
        assert (edge.end[0] < edge.start[0]) == edge.is_back


@given(graphs(most=12))
@settings(max_examples=60)
def test_no_edge_runs_through_a_box(graph: tuple[list[str], list[Pair]]) -> None:
    nodes, edges = graph

    layout = layered(nodes, edges)

    for edge in layout.edges:
        # The straight parts cross columns; the curves stay in the gaps between them.
        for left, right, y in straight_parts(edge.path):
            assert not [box for box in layout.boxes if box.x < right and left < box.x + box.width and touches(box, y)]


def straight_parts(path: str) -> list[tuple[int, int, int]]:
    """The horizontal lines of a path: from, to, height."""
    found, at = [], (0, 0)
    for kind, numbers in re.findall(r"([MCH])([-0-9 ]+)", path):
        values = [int(each) for each in numbers.split()]
        if kind == "H":
            found.append((at[0], values[0], at[1]))
            at = (values[0], at[1])
        else:
            at = (values[-2], values[-1])
    return found


def touches(box: Box, y: int) -> bool:
    return box.y <= y <= box.y + box.height


def test_a_chain_is_one_straight_row() -> None:
    layout = layered("abc", [("a", "b"), ("b", "c")], Size(width=100, height=40, column_gap=20))

    assert [box.x for box in layout.boxes] == [8, 128, 248]
    assert len({box.y for box in layout.boxes}) == 1


def test_edges_that_can_avoid_each_other_do_not_cross() -> None:
    layout = layered(["a", "b", "c", "y", "x", "z"], [("a", "x"), ("b", "y"), ("c", "z")])

    at = {box.id: box.y for box in layout.boxes}
    assert (at["a"] < at["b"]) == (at["x"] < at["y"])
    assert (at["b"] < at["c"]) == (at["y"] < at["z"])


def test_the_same_graph_is_always_drawn_in_the_same_way() -> None:
    edges = [("a", "c"), ("b", "c"), ("a", "d"), ("c", "d")]

    assert layered("abcd", edges) == layered("abcd", edges)


def test_nothing_is_an_empty_drawing() -> None:
    assert layered([], []).boxes == []
