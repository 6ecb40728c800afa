"""A layered layout: boxes in columns from left to right, with edges that pass between them.

The steps are those of Sugiyama: break cycles, put each node into the column behind its last predecessor, give edges
that pass a column a lane there, sort the columns so that few edges cross, and move everything near to its neighbours.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

MARGIN: Final = 8
_SWEEPS: Final = 8
_LANE_HEIGHT: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large boxes are, and how far apart, in pixels."""

    width: int = 184
    height: int = 44
    column_gap: int = 48
    row_gap: int = 12


_USUAL: Final = Size()


@dataclass(frozen=True, slots=True)
class Box:
    """Where a node is drawn."""

    id: str
    x: int
    y: int
    width: int
    height: int

    @property
    def middle(self) -> int:
        """Half of its height, from the top of the drawing."""
        return self.y + self.height // 2


@dataclass(frozen=True, slots=True)
class Edge:
    """How an edge is drawn: the data of its path, and the first and last point."""

    source: str
    target: str
    path: str
    start: tuple[int, int]
    end: tuple[int, int]
    is_back: bool = False
    """Whether it closes a cycle, so that it goes from right to left."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A drawing and its size."""

    width: int
    height: int
    boxes: Sequence[Box]
    edges: Sequence[Edge]


Pair = tuple[str, str]
Slot = tuple[str, str, int]
"""A place in a column: `(node, "", column)` is a node's box, `(source, target, column)` the lane of an edge."""
_Columns = list[list[Slot]]
_Links = Mapping[Slot, Sequence[Slot]]


def layered(nodes: Iterable[str], edges: Iterable[Pair], size: Size = _USUAL) -> Layout:
    """Return where to draw the nodes and edges; an edge from a node to itself, or to none of the nodes, is left out."""
    known = list(dict.fromkeys(nodes))
    names = set(known)
    wanted = [(a, b) for a, b in dict.fromkeys(edges) if a != b and a in names and b in names]
    backward = _closing(known, wanted)
    # An edge that closes a cycle is laid out the other way round.
    forward = list(dict.fromkeys((b, a) if (a, b) in backward else (a, b) for a, b in wanted))
    column_of = columns_of(known, forward)
    routes = {pair: _route(pair, column_of) for pair in forward}
    columns = _columns(known, column_of, routes)
    before, behind = _links(routes.values())
    columns = _sorted_columns(columns, before, behind)
    middles = _middles(columns, before, behind, size)
    drawn = {slot: round(middle) for slot, middle in middles.items()}
    boxes = [_box(name, column_of[name], drawn, size) for name in known]
    lines = [_edge(pair, routes, drawn, size, is_back=pair in backward) for pair in wanted]
    bottom = max((middle + _height(slot, size) // 2 for slot, middle in drawn.items()), default=0)
    width = max(1, len(columns)) * (size.width + size.column_gap) - size.column_gap
    return Layout(width + 2 * MARGIN, bottom + MARGIN, boxes, lines)


def _closing(nodes: Sequence[str], edges: Sequence[Pair]) -> set[Pair]:
    """Return the edges that close a cycle, met while walking along the edges from each node."""
    following: dict[str, list[str]] = {node: [] for node in nodes}
    for source, target in edges:
        following[source].append(target)
    done, on_way, closing = set[str](), set[str](), set[Pair]()
    for root in nodes:
        walk = [(root, iter(following[root]))] if root not in done else []
        on_way.update(node for node, _ in walk)
        while walk:
            node, rest = walk[-1]
            reached = next(rest, None)
            if reached is None:
                walk.pop()
                on_way.discard(node)
                done.add(node)
            elif reached in on_way:
                closing.add((node, reached))
            elif reached not in done:
                on_way.add(reached)
                walk.append((reached, iter(following[reached])))
    return closing


def columns_of(nodes: Sequence[str], edges: Sequence[Pair]) -> dict[str, int]:
    """Return the column of each node: the one behind the last of its predecessors."""
    waits_for = dict.fromkeys(nodes, 0)
    following: dict[str, list[str]] = {node: [] for node in nodes}
    for source, target in edges:
        waits_for[target] += 1
        following[source].append(target)
    column = dict.fromkeys(nodes, 0)
    ready = [node for node in nodes if not waits_for[node]]
    for node in ready:
        for target in following[node]:
            column[target] = max(column[target], column[node] + 1)
            waits_for[target] -= 1
            if not waits_for[target]:
                ready.append(target)
    return column


def _route(pair: Pair, column_of: Mapping[str, int]) -> list[Slot]:
    """Return the slots that an edge visits: its source, a lane in each column that it passes, and its target."""
    source, target = pair
    first, last = column_of[source], column_of[target]
    lanes = [(source, target, column) for column in range(first + 1, last)]
    return [(source, "", first), *lanes, (target, "", last)]


def _columns(nodes: Sequence[str], column_of: Mapping[str, int], routes: Mapping[Pair, Sequence[Slot]]) -> _Columns:
    columns: _Columns = [[] for _ in range(max(column_of.values(), default=-1) + 1)]
    for node in nodes:
        columns[column_of[node]].append((node, "", column_of[node]))
    for route in routes.values():
        for lane in route[1:-1]:
            columns[lane[2]].append(lane)
    return columns


def _links(routes: Iterable[Sequence[Slot]]) -> tuple[_Links, _Links]:
    """Return the neighbours of each slot in the column before it, and in the column behind it."""
    before: dict[Slot, list[Slot]] = {}
    behind: dict[Slot, list[Slot]] = {}
    for route in routes:
        for left, right in pairwise(route):
            before.setdefault(right, []).append(left)
            behind.setdefault(left, []).append(right)
    return before, behind


def _sorted_columns(columns: _Columns, before: _Links, behind: _Links) -> _Columns:
    """Return the columns in the order with the fewest crossings that some sweeps to and fro find."""
    best, fewest = columns, _crossings(columns, behind)
    order = [list(column) for column in columns]
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        rightwards = sweep % 2 == 0
        numbers = range(1, len(order)) if rightwards else range(len(order) - 2, -1, -1)
        for number in numbers:
            fixed = order[number - 1] if rightwards else order[number + 1]
            order[number] = _by_neighbours(order[number], fixed, before if rightwards else behind)
        crossings = _crossings(order, behind)
        if crossings < fewest:
            best, fewest = [list(column) for column in order], crossings
    return best


def _by_neighbours(column: Sequence[Slot], fixed: Sequence[Slot], links: _Links) -> list[Slot]:
    """Return the column sorted by the mean place of each slot's neighbours; one without any keeps its place."""
    place = {slot: number for number, slot in enumerate(fixed)}
    wish = {slot: float(number) for number, slot in enumerate(column)}
    for slot in column:
        if places := [place[each] for each in links.get(slot, ())]:
            wish[slot] = sum(places) / len(places)
    return sorted(column, key=lambda slot: wish[slot])


def _crossings(columns: _Columns, behind: _Links) -> int:
    """Return how many edges cross between neighbouring columns."""
    count = 0
    for left, right in pairwise(columns):
        place = {slot: number for number, slot in enumerate(right)}
        above: list[int] = []
        for slot in left:
            ends = sorted(place[each] for each in behind.get(slot, ()))
            count += sum(len(above) - bisect_left(above, end + 1) for end in ends)
            for end in ends:
                insort(above, end)
    return count


def _middles(columns: _Columns, before: _Links, behind: _Links, size: Size) -> dict[Slot, float]:
    """Return the middle of each slot, near to those of its neighbours, with no two slots of a column overlapping."""
    middle: dict[Slot, float] = {}
    for column in columns:
        middle.update(zip(column, _spread([0.0] * len(column), _distances(column, size)), strict=True))
    for sweep in range(_SWEEPS):
        for column in columns if sweep % 2 == 0 else reversed(columns):
            near = [[*before.get(slot, ()), *behind.get(slot, ())] for slot in column]
            wishes = [
                sum(middle[each] for each in found) / len(found) if found else middle[slot]
                for slot, found in zip(column, near, strict=True)
            ]
            middle.update(zip(column, _spread(wishes, _distances(column, size)), strict=True))
    top = min((value - _height(slot, size) / 2 for slot, value in middle.items()), default=0.0)
    return {slot: value - top + MARGIN for slot, value in middle.items()}


def _distances(column: Sequence[Slot], size: Size) -> list[float]:
    return [(_height(a, size) + _height(b, size)) / 2 + size.row_gap for a, b in pairwise(column)]


def _spread(wishes: Sequence[float], distances: Sequence[float]) -> list[float]:
    """Return the places nearest to the wishes that keep their order and at least these distances.

    Without the distances this is isotonic regression: neighbours in the wrong order share the mean of their wishes.
    """
    offsets = [0.0]
    for distance in distances:
        offsets.append(offsets[-1] + distance)
    pools: list[tuple[float, int]] = []
    for wish, offset in zip(wishes, offsets, strict=False):
        total, count = wish - offset, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            former = pools.pop()
            total, count = total + former[0], count + former[1]
        pools.append((total, count))
    places = [total / count for total, count in pools for _ in range(count)]
    return [place + offset for place, offset in zip(places, offsets, strict=False)]


def _height(slot: Slot, size: Size) -> int:
    return _LANE_HEIGHT if slot[1] else size.height


def _left(column: int, size: Size) -> int:
    return MARGIN + column * (size.width + size.column_gap)


def _box(name: str, column: int, middles: Mapping[Slot, int], size: Size) -> Box:
    return Box(name, _left(column, size), middles[name, "", column] - size.height // 2, size.width, size.height)


def _edge(
    pair: Pair, routes: Mapping[Pair, Sequence[Slot]], middles: Mapping[Slot, int], size: Size, *, is_back: bool
) -> Edge:
    """Return the path of an edge: a curve between columns, and a straight line through each lane."""
    route = routes[pair[1], pair[0]] if is_back else routes[pair]
    points: list[tuple[int, int]] = []
    for slot in route:
        # An edge that leads back touches the boxes beside the edges that come the other way.
        left, y = _left(slot[2], size), middles[slot] + (size.height // 4 if is_back and not slot[1] else 0)
        points += [(left, y), (left + size.width, y)]
    points = points[1:-1]
    if is_back:
        points.reverse()
    parts = [f"M{points[0][0]} {points[0][1]}"]
    for number, ((x1, y1), (x2, y2)) in enumerate(pairwise(points)):
        bend = (x1 + x2) // 2
        parts.append(f"H{x2}" if number % 2 else f"C{bend} {y1} {bend} {y2} {x2} {y2}")
    return Edge(*pair, " ".join(parts), points[0], points[-1], is_back)
