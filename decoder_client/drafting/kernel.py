"""The inner loops of drafting, compiled: what may follow a node, how likely it is, and the likeliest nodes of a tree.

Compiled because a draft costs a few dozen small steps a node, each of which is an array call in numpy. Functions take
arrays only and allocate what they return. They know no objects; what arrays mean is said in `acceptance`, `weights`,
`fresh` and `lookup`.
"""

from __future__ import annotations

import heapq
import math

import numpy as np

from dresd.compiled import njit

MASSES, TOTALS = slice(0, 3), slice(3, 6)
FRESH, TABLE, MIXTURE, FROM_TABLES, IS_FRESH, IS_PAIR, IS_KNOWN = range(6, 13)
COLUMNS = 13
"""Columns of what is known of a child of a node:

- `MASSES`: each source's weighted mass on it;
- `TOTALS`: the same on all children of the node;
- `FRESH`: what the target said of it in this sequence in the same place, 0 if nothing;
- `TABLE`: the token table's probability of it;
- `MIXTURE`: its probability by `weights`;
- `FROM_TABLES`: the mass that both tables add;
- `IS_FRESH`: 1 if the target said anything there, else 0;
- `IS_PAIR`: 1 if the table knows the token pair there, 0 if only the last token;
- `IS_KNOWN`: 1 if it knows the place at all.
"""

FEATURES = 25
"""Numbers that the acceptance model reads of a child."""

DENSE_WEIGHT, SPARSE_WEIGHT, LOCAL_WEIGHT, ESCAPE_WEIGHT, FRESH_WEIGHT = range(5)
"""Places of the weights w_s, e and o, see `weights`."""

ESCAPE_BY_DEPTH = -0.077
PAIR_SHARE, SINGLE_SHARE = 0.76, 0.5
"""Share of the evidence against what the sources have seen that the token table hands out again, where it knows the
token pair or only its last token. Fitted as the priors in `weights`."""

EMPTY = -(2**63)
"""No token pair: a free place of a hash table."""

_HAIR = 1e-4
_LN_2, _LOG2_E = math.log(2.0), 1.0 / math.log(2.0)


_MULTIPLIER = 0x9E3779B97F4A7C15 - 2**64


@njit
def pair_place(keys, key):
    """The place of `key` in a hash table whose size is a power of two, or the free one where it belongs."""
    mask = len(keys) - 1
    at = ((key * _MULTIPLIER) >> 17) & mask
    while keys[at] != key and keys[at] != EMPTY:
        at = (at + 1) & mask
    return at


@njit
def _find(ascending, wanted):
    """Where `wanted` stands in an ascending array, -1 if it does not."""
    low, high = 0, len(ascending)
    while low < high:
        middle = (low + high) >> 1
        if ascending[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low if low < len(ascending) and ascending[low] == wanted else -1


@njit
def _child(tokens, count, token):
    """The place of `token` among the first `count`, or `count`."""
    for at in range(count):
        if tokens[at] == token:
            return at
    return count


@njit
def children(paths, masses, members, depth, previous, current, table, fresh, weights):
    """What may follow one node.

    Args:
        paths: int32 [m, D].
        masses: float64 [m, 3], weighted.
        members: int64 [p], the paths that go through the node.
        depth: of the node, 0 for the root; the paths' column of its children.
        previous: the token before the node's, -1 for none.
        current: the node's token.
        table: the arrays of a `LookupTable`.
        fresh: the arrays of a `FreshTable`.
        weights: float64 [5].

    Returns:
        tokens: int64 [n].
        known: float64 [n, COLUMNS].
        owners: int64 [p], the child that each member goes on to, -1 for one that ends.
    """
    pairs, pair_next, pair_shares, singles, single_next, single_shares = table
    fresh_keys, fresh_next, fresh_shares = fresh
    room = len(members) + pair_next.shape[1] + fresh_next.shape[1]
    tokens = np.empty(room, np.int64)
    known = np.zeros((room, COLUMNS))
    owners = np.full(len(members), -1, np.int64)
    count = 0
    for place in range(len(members)):
        path = members[place]
        token = paths[path, depth] if depth < paths.shape[1] else -1
        if token < 0:
            continue
        child = _child(tokens, count, token)
        if child == count:
            tokens[count] = token
            count += 1
        owners[place] = child
        for source in range(3):
            known[child, source] += masses[path, source]
    key = (previous << 32) | current
    row = _find(pairs, key)
    is_pair = row >= 0
    if not is_pair:
        row = _find(singles, current)
    is_known = False
    if row >= 0:
        for place in range(pair_next.shape[1]):
            token = pair_next[row, place] if is_pair else single_next[row, place]
            if token < 0:
                break
            is_known = True
            child = _child(tokens, count, token)
            if child == count:
                tokens[count] = token
                count += 1
            known[child, TABLE] += pair_shares[row, place] if is_pair else single_shares[row, place]
    slot = pair_place(fresh_keys, key)
    is_fresh = fresh_keys[slot] == key
    if is_fresh:
        for place in range(fresh_next.shape[1]):
            token = fresh_next[slot, place]
            child = _child(tokens, count, token)
            if child == count:
                tokens[count] = token
                count += 1
            known[child, FRESH] += fresh_shares[slot, place]
    escape = weights[ESCAPE_WEIGHT] * math.exp(ESCAPE_BY_DEPTH * depth)
    said = weights[FRESH_WEIGHT] if is_fresh else 0.0
    worth = escape * (PAIR_SHARE if is_pair else SINGLE_SHARE)
    totals = np.zeros(3)
    for child in range(count):
        for source in range(3):
            totals[source] += known[child, source]
    evidence = totals.sum() + escape + said
    for child in range(count):
        from_tables = worth * known[child, TABLE] + said * known[child, FRESH]
        known[child, 3:6] = totals
        known[child, MIXTURE] = (known[child, 0] + known[child, 1] + known[child, 2] + from_tables) / evidence
        known[child, FROM_TABLES] = from_tables
        known[child, IS_FRESH] = is_fresh
        known[child, IS_PAIR] = is_pair
        known[child, IS_KNOWN] = is_known
    return tokens[:count], known[:count], owners


@njit
def features(child, depth, made):
    """Fills `made` [FEATURES] with what the acceptance model reads of a child [COLUMNS] of a node at `depth`."""
    for source in range(3):
        mass, total = child[source], child[3 + source]
        share = mass / (total + 1e-9)
        made[source] = math.log(mass + _HAIR)
        made[3 + source] = math.log(share + _HAIR)
        made[6 + source] = math.log(total + _HAIR)
        made[16 + source] = share
        made[22 + source] = math.log1p(total)
    for scale in range(3):
        amount = child[FRESH + scale]
        made[9 + scale] = math.log(amount + _HAIR)
        made[19 + scale] = amount
    made[12] = 1.0 - child[IS_FRESH]
    made[13] = child[IS_PAIR]
    made[14] = 1.0 - child[IS_KNOWN]
    made[15] = depth / 8.0


@njit
def score(made, model, drives, bits):
    """The acceptance model's score of a child, from its features; `drives` and `bits` are room for [h] numbers."""
    hidden, hidden_bias, out, direct, bias = model
    score = bias
    for feature in range(FEATURES):
        score += made[feature] * direct[feature]
    drives[:] = hidden_bias
    # Unit by unit within a feature: vector instructions add up many units at once, in the order of the features.
    for feature in range(FEATURES):
        for unit in range(len(out)):
            drives[unit] += made[feature] * hidden[feature, unit]
    _tanh(drives, bits)
    for unit in range(len(out)):
        score += drives[unit] * out[unit]
    return min(max(score, -20.0), 20.0)


@njit(error_model="numpy")
def _tanh(values, bits):
    """tanh of each number, in place, to 14 digits; `bits` is room for as many int64.

    A library's tanh takes one number at a time. exp(2x) = 2^k exp(r) with |r| <= ln(2) / 2, and a short series for
    exp(r), take no branch, so vector instructions do many at once.
    """
    powers = bits.view(np.float64)
    for at in range(len(values)):
        doubled = min(max(2.0 * values[at], -40.0), 40.0)
        whole = math.floor(doubled * _LOG2_E + 0.5)
        rest = doubled - whole * _LN_2
        bits[at] = (np.int64(whole) + 1023) << 52  # a float64's exponent
        series = 1.0
        for divisor in (11.0, 10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0):
            series = 1.0 + series * rest * (1.0 / divisor)
        values[at] = series
    for at in range(len(values)):
        values[at] = 1.0 - 2.0 / (values[at] * powers[at] + 1.0)


@njit
def likeliest_nodes(
    paths, masses, previous, newest, table, fresh, weights, model, escape, max_depth, max_nodes, floor, vocab_size
):
    """The nodes of a draft tree that are likeliest, by expanding the likeliest one found so far again and again.

    Args:
        paths: int32 [m, D], `PAD` from the end on.
        masses: float64 [m, 3], weighted.
        previous: the token before the newest one, -1 for none.
        newest: the token just chosen.
        table: see `children`, as the next two.
        fresh: what the target said in this sequence.
        weights: of the sources.
        model: the arrays of an acceptance model.
        escape: exp of the score of the case that no child follows.
        max_depth: of the tree.
        max_nodes: of the tree.
        floor: the least probability of a node.
        vocab_size: of the target; no node has a token beyond it.

    Returns:
        tokens: int64 [n], likeliest node first, so parents before children.
        parents: int64 [n], -1 for depth 1.
        reach: float64 [n], the nodes' probabilities.
        known: float64 [n, COLUMNS].
    """
    tokens = np.empty(max_nodes, np.int64)
    parents = np.empty(max_nodes, np.int64)
    reach = np.empty(max_nodes)
    known = np.empty((max_nodes, COLUMNS))
    depths = np.empty(max_nodes, np.int64)
    # What has been found and waits: its place in the lists below is the tie-breaker.
    waiting = [(0.0, 0)]
    waiting.clear()
    found_token = [0]
    found_parent = [0]
    found_known = [known[0]]
    found_members = [np.arange(len(paths))]
    made = np.empty(FEATURES)
    drives, bits = np.empty(len(model[2])), np.empty(len(model[2]), np.int64)
    scores = np.empty(0)
    count = 0
    node, at_previous, at_current, at_depth, at_reach = -1, previous, newest, 0, 1.0
    members = found_members[0]
    while True:
        if at_depth < max_depth:
            next_tokens, next_known, owners = children(
                paths, masses, members, at_depth, at_previous, at_current, table, fresh, weights
            )
            if len(scores) < len(next_tokens):
                scores = np.empty(2 * len(next_tokens))
            total = escape
            for child in range(len(next_tokens)):
                scores[child] = 0.0
                # The network looks at what the mixture finds possible at all.
                if next_known[child, MIXTURE] * at_reach >= floor and next_tokens[child] < vocab_size:
                    features(next_known[child], at_depth, made)
                    scores[child] = math.exp(score(made, model, drives, bits))
                    total += scores[child]
            for child in range(len(next_tokens)):
                probability = at_reach * scores[child] / total
                if scores[child] > 0.0 and probability >= floor:
                    heapq.heappush(waiting, (-probability, len(found_token)))
                    found_token.append(next_tokens[child])
                    found_parent.append(node)
                    found_known.append(next_known[child])
                    found_members.append(members[owners == child])
        if count == max_nodes or len(waiting) == 0:
            break
        least, place = heapq.heappop(waiting)
        node = count
        tokens[node], parents[node], reach[node] = found_token[place], found_parent[place], -least
        known[node] = found_known[place]
        parent = parents[node]
        depths[node] = 1 + (depths[parent] if parent >= 0 else 0)
        at_previous = tokens[parent] if parent >= 0 else newest
        at_current, at_depth, at_reach = tokens[node], depths[node], reach[node]
        members = found_members[place]
        count += 1
        if count == max_nodes:
            break
    return tokens[:count], parents[:count], reach[:count], known[:count]


@njit
def learn(paths, masses, previous, newest, chosen, table, fresh, logs, rate, step_max):
    """Steps the weights' logarithms up the gradient of the log likelihood of the target's tokens, in place.

    Follows the tokens `chosen` (int64 [n]) through the evidence up to the first one that nothing foresaw. `masses` are
    not weighted; the other arguments are those of `likeliest_nodes`, and `logs` float64 [5].
    """
    members = np.arange(len(paths))
    current = newest
    for depth in range(len(chosen)):
        token = chosen[depth]
        weights = np.exp(logs)
        weighted = masses * weights[:3]
        tokens, known, owners = children(paths, weighted, members, depth, previous, current, table, fresh, weights)
        child = _child(tokens, len(tokens), token)
        escape = weights[ESCAPE_WEIGHT] * math.exp(ESCAPE_BY_DEPTH * depth)
        parts, totals = np.zeros(5), np.zeros(5)
        said = 0.0
        if len(tokens):
            totals[:3] = known[0, 3:6]
            said = weights[FRESH_WEIGHT] * known[0, IS_FRESH]
        totals[ESCAPE_WEIGHT], totals[FRESH_WEIGHT] = escape, said
        foreseen = child < len(tokens)
        if foreseen:
            parts[:3] = known[child, :3]
            parts[FRESH_WEIGHT] = said * known[child, FRESH]
            parts[ESCAPE_WEIGHT] = max(0.0, known[child, FROM_TABLES] - parts[FRESH_WEIGHT])
        likelihood = parts.sum()
        if likelihood <= 0.0:
            # Nothing foresaw the token: the evidence against all sources was right.
            parts[ESCAPE_WEIGHT] = likelihood = escape
        whole = totals.sum()
        for place in range(5):
            step = rate * (parts[place] / likelihood - totals[place] / whole)
            logs[place] += min(max(step, -step_max), step_max)
        if not foreseen:
            return
        members = members[owners == child]
        previous, current = current, token
