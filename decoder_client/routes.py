"""Which servers may be asked for what, and how a batch is split among them.

Clients follow one build at a time: keys are made by one reducer, and trees of different builds are never merged. It
must not know how servers are found, kept connected or asked.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from decoder_client.handshake import Handshake
from decoder_client.retrieve_link import RetrieveLink
from decoder_client.server_connection import ServerConnection
from decoder_client.wire import Limits


@dataclass(frozen=True, slots=True)
class Replica:
    """A server that serves a build, over the link that it was found on.

    Attributes:
        connection: to the server.
        link: to ask it by.
        handshake: of the build.
        is_current: whether it is the server's current build, and not one that it answers for a little longer.
    """

    connection: ServerConnection
    link: RetrieveLink
    handshake: Handshake
    is_current: bool = True


@dataclass(frozen=True, slots=True)
class Part:
    """What one server is asked for.

    Attributes:
        replicas: those that can answer it, the one to ask first.
        rows: int64 [b], the batch's queries concerned, ascending; None is all of them.
        partitions: to be searched; empty is all that those queries concern.
        num_partitions: how many those are; 0 where nobody has looked.
    """

    replicas: Sequence[Replica]
    rows: NDArray[np.int64] | None
    partitions: tuple[int, ...]
    num_partitions: int


class Routes:
    """The servers of one build. Never changes.

    Args:
        replicas: at least one, all of one build.

    Attributes:
        handshake: the first server's, with limits that all of them allow.
    """

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self.handshake = replicas[0].handshake
        if any(each.handshake.limits != self.handshake.limits for each in replicas):
            self.handshake = replace(self.handshake, limits=_least(each.handshake.limits for each in replicas))
        self._replicas = tuple(replicas)
        number = self.handshake.routing.num_partitions
        self._all_alike = all(len(each.handshake.served_partitions) == number for each in replicas)
        self._owners = [
            [each for each in replicas if partition in each.handshake.served_partitions] for partition in range(number)
        ]

    def split(self, next_tokens: Sequence[int]) -> list[Part]:
        """The parts of a batch of queries (at least one); together they search every partition once.

        A partition goes to an owner, as few servers as possible are asked, and of several owners the one with the
        fewest requests under way. What nobody is known to own goes to a server that may pass it on. A query without
        entries in any partition is in no part.
        """
        if self._all_alike:
            return [Part(_least_busy_first(self._replicas), None, (), 0)]
        queries, partitions = self.handshake.routing.lookup(np.asarray(next_tokens, np.int64))
        chosen: dict[int, list[int]] = {}  # place among the replicas -> partitions
        order = _least_busy_first(self._replicas)
        for partition in np.unique(partitions).tolist():
            owners = self._owners[partition] or order
            places = [place for place, each in enumerate(order) if each in owners]
            place = next((place for place in places if place in chosen), places[0])
            chosen.setdefault(place, []).append(partition)
        parts = []
        for place, mine in chosen.items():
            here = np.isin(partitions, mine)
            rows = np.unique(queries[here])
            # Of a query that also concerns partitions of others, only these are asked for.
            alone = int(here.sum()) == int(np.isin(queries, rows).sum())
            others = [
                each
                for each in order
                if each is not order[place] and all(each in (self._owners[one] or order) for one in mine)
            ]
            parts.append(Part([order[place], *others], rows, () if alone else tuple(mine), len(mine)))
        return parts


def follow(replicas: Iterable[Replica], followed: str | None) -> Routes | None:
    """Chooses a build, and the routes over its servers; None where there is no server.

    The build whose servers together hold the greatest share of its partitions; where several do, one that is some
    server's current build, then the one followed so far, then the one of the most servers. So while servers take up
    another build one by one, the client stays with the old build as long as all of it is served and some server has not
    taken up the new one, or until more of the new one is served.
    """
    builds: dict[str, list[Replica]] = {}
    for each in replicas:
        builds.setdefault(each.handshake.build_id, []).append(each)
    if not builds:
        return None

    def preference(build_id: str) -> tuple[float, bool, bool, int, str]:
        mine = builds[build_id]
        held = set().union(*(each.handshake.served_partitions for each in mine))
        share = len(held) / mine[0].handshake.routing.num_partitions
        return share, any(each.is_current for each in mine), build_id == followed, len(mine), build_id

    return Routes(builds[max(builds, key=preference)])


def _least_busy_first(replicas: Sequence[Replica]) -> Sequence[Replica]:
    if len(replicas) == 1:
        return replicas
    return sorted(replicas, key=lambda each: (each.link.outstanding, random.random()))  # noqa: S311 - spreads ties


def _least(limits: Iterable[Limits]) -> Limits:
    return reduce(
        lambda a, b: Limits(
            min(a.max_queries, b.max_queries),
            min(a.max_neighbors, b.max_neighbors),
            min(a.max_nodes, b.max_nodes),
        ),
        limits,
    )
