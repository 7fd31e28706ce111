"""The maths a second time: plain loops over Python floats (float64), written apart from the code
under test.

A row is a list of its actions; an action is a dict of floats. `log_prob` is the policy's now;
`fixed` is the same number where the loss stops the gradient, so that moving `log_prob` alone gives
the gradient by finite differences.
"""

import math
from collections.abc import Callable
from itertools import combinations
from typing import Any

Action = dict[str, float]
Rows = list[list[Action]]


def clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def ppo_clip(
    rows: Rows, low: float = 0.2, high: float = 0.2, dual: float | None = None, **_: Any
) -> list[list[float]]:
    def one(a: Action) -> float:
        rho = math.exp(a["log_prob"] - a["old"])
        loss = max(-a["advantage"] * rho, -a["advantage"] * clip(rho, 1 - low, 1 + high))
        return (
            min(loss, -a["advantage"] * dual) if dual is not None and a["advantage"] < 0 else loss
        )

    return [[one(a) for a in row] for row in rows]


def gspo(rows: Rows, low: float = 3e-4, high: float = 4e-4, **_: Any) -> list[list[float]]:
    out = []
    for row in rows:
        mean = sum(a["fixed"] - a["old"] for a in row) / max(len(row), 1)
        losses = []
        for a in row:
            s = math.exp(mean + a["log_prob"] - a["fixed"])
            losses.append(max(-a["advantage"] * s, -a["advantage"] * clip(s, 1 - low, 1 + high)))
        out.append(losses)
    return out


def cispo(rows: Rows, low: float = 1.0, high: float = 4.0, **_: Any) -> list[list[float]]:
    return [
        [
            -clip(math.exp(a["fixed"] - a["old"]), 1 - low, 1 + high)
            * a["advantage"]
            * a["log_prob"]
            for a in row
        ]
        for row in rows
    ]


def sapo(rows: Rows, **_: Any) -> list[list[float]]:
    def one(a: Action) -> float:
        tau = 1.0 if a["advantage"] > 0 else 1.05
        gate = 1 / (1 + math.exp(-tau * (math.exp(a["log_prob"] - a["old"]) - 1)))
        return -a["advantage"] * 4 / tau * gate

    return [[one(a) for a in row] for row in rows]


def gmpo(rows: Rows, low: float = 0.4, high: float = 0.4, **_: Any) -> list[list[float]]:
    out = []
    for row in rows:
        total = 0.0
        for a in row:
            d = a["log_prob"] - a["old"]
            total += (
                min(d, high) if a["advantage"] > 0 else max(d, -low) if a["advantage"] < 0 else d
            )
        out.append([-a["advantage"] * math.exp(total / len(row)) for a in row])
    return out


def dppo(rows: Rows, kind: str, delta: float, most: float = 20.0, **_: Any) -> list[list[float]]:
    def one(a: Action) -> float:
        p, q = math.exp(a["fixed"]), math.exp(a["old"])
        divergence = (
            abs(p - q)
            if kind == "tv"
            else q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
        )
        away = (a["advantage"] > 0 and p > q) or (a["advantage"] < 0 and p < q)
        return (
            0.0
            if away and divergence > delta
            else -a["advantage"] * min(p / q, most) * a["log_prob"]
        )

    return [[one(a) for a in row] for row in rows]


def drpo(rows: Rows, eps: float = 12.5, weighed: bool = True, **_: Any) -> list[list[float]]:
    def one(a: Action) -> float:
        rho, weight = math.exp(a["log_prob"] - a["old"]), math.exp(a["old"]) if weighed else 1.0
        return -a["advantage"] * rho + abs(a["advantage"]) * weight * (rho - 1) ** 2 / (2 * eps)

    return [[one(a) for a in row] for row in rows]


def dro(rows: Rows, beta: float = 0.05, **_: Any) -> list[list[float]]:
    return [
        [
            -(a["advantage"] * a["log_prob"] - beta / 2 * (a["log_prob"] - a["old"]) ** 2)
            for a in row
        ]
        for row in rows
    ]


def reinforce(rows: Rows, **_: Any) -> list[list[float]]:
    return [[-a["advantage"] * a["log_prob"] for a in row] for row in rows]


def flow_dppo(rows: Rows, tau: float = 1e-4, **_: Any) -> list[list[float]]:
    def one(a: Action) -> float:
        d = a["fixed"] - a["old"]
        away = (a["advantage"] > 0 and d > 0) or (a["advantage"] < 0 and d < 0)
        return (
            0.0
            if away and a["old_kl"] >= tau
            else -a["advantage"] * math.exp(a["log_prob"] - a["old"])
        )

    return [[one(a) for a in row] for row in rows]


def kl_cov(rows: Rows, share: float, weight: float = 1.0, **_: Any) -> list[list[float]]:
    flat = [a for row in rows for a in row]
    mean_a = sum(a["advantage"] for a in flat) / len(flat)
    mean_l = sum(a["fixed"] for a in flat) / len(flat)
    ranked = sorted(flat, key=lambda a: -(a["advantage"] - mean_a) * (a["fixed"] - mean_l))
    chosen = {id(a) for a in ranked[: max(int(share * len(flat)), 1)]}

    def one(a: Action) -> float:
        loss = -a["advantage"] * math.exp(a["log_prob"] - a["old"])
        return loss + weight * abs(a["log_prob"] - a["old"]) if id(a) in chosen else loss

    return [[one(a) for a in row] for row in rows]


LOSSES: dict[str, tuple[dict[str, Any], Callable[..., list[list[float]]], dict[str, Any]]] = {
    "ppo_clip": ({"name": "ppo_clip"}, ppo_clip, {}),
    "ppo_clip_dual": (
        {"name": "ppo_clip", "clip_high": 0.28, "dual_clip": 1.5},
        ppo_clip,
        {"high": 0.28, "dual": 1.5},
    ),
    "gspo": (
        {"name": "gspo", "clip_low": 0.05, "clip_high": 0.1},
        gspo,
        {"low": 0.05, "high": 0.1},
    ),
    "cispo": ({"name": "cispo", "clip_high": 0.3}, cispo, {"high": 0.3}),
    "sapo": ({"name": "sapo"}, sapo, {}),
    "gmpo": ({"name": "gmpo", "clip_low": 0.2, "clip_high": 0.3}, gmpo, {"low": 0.2, "high": 0.3}),
    "dppo_tv": ({"name": "dppo_tv", "delta": 0.05}, dppo, {"kind": "tv", "delta": 0.05}),
    "dppo_kl": ({"name": "dppo_kl", "delta": 0.02}, dppo, {"kind": "kl", "delta": 0.02}),
    "drpo": ({"name": "drpo"}, drpo, {}),
    "spo": (
        {"name": "drpo", "weigh_by_probability": False, "eps": 0.2},
        drpo,
        {"weighed": False, "eps": 0.2},
    ),
    "dro": ({"name": "dro", "beta": 0.3}, dro, {"beta": 0.3}),
    "reinforce": ({"name": "reinforce"}, reinforce, {}),
    "gpg": ({"name": "gpg"}, reinforce, {}),
    "flow_dppo": ({"name": "flow_dppo", "max_kl": 0.05}, flow_dppo, {"tau": 0.05}),
    "kl_cov": (
        {"name": "kl_cov", "penalised_share": 0.1, "penalty": 0.7},
        kl_cov,
        {"share": 0.1, "weight": 0.7},
    ),
}
"""The `loss` block, the loop, and the loop's settings."""


def kl(kind: str, d: float) -> float:
    return {"k1": d, "abs": abs(d), "k2": d * d / 2, "k3": min(math.exp(-d) + d - 1, 10.0)}[kind]


def aggregate(losses: list[list[float]], mode: str, max_length: int) -> float:
    rows = [row for row in losses if row]
    total = sum(map(sum, rows))
    return {
        "token-mean": total / sum(map(len, rows)),
        "token-sum": total,
        "seq-mean-token-sum": total / len(rows),
        "seq-mean-token-sum-norm": total / len(rows) / max_length,
        "seq-mean-token-mean": sum(sum(row) / len(row) for row in rows) / len(rows),
    }[mode]


def correction(
    rows: Rows,
    level: str,
    mode: str,
    low: float,
    high: float,
    reject: tuple[str, str, float] | None,
):
    """The weight of each action, 0 where it is dropped."""

    def at_level(values: list[float], which: str) -> list[float]:
        if which == "token" or not values:
            return values
        total = sum(values) / (len(values) if which == "geometric" else 1)
        return [total] * len(values)

    out = []
    for row in rows:
        deltas = [a["old"] - a["rollout"] for a in row]
        weights = [math.exp(d) for d in at_level(deltas, level)]
        weights = [
            min(w, high) if mode == "truncate" else (w if low <= w <= high else 0.0)
            for w in weights
        ]
        if reject is not None:
            kind, where, bound = reject
            estimates = at_level([kl(kind, -d) for d in deltas], where)
            weights = [
                0.0 if estimate > bound else w
                for w, estimate in zip(weights, estimates, strict=True)
            ]
        out.append(weights)
    return out


# Advantages. A batch is lists of rewards, group ids and masks.


def siblings(groups: list[int], b: int) -> list[int]:
    return [i for i in range(len(groups)) if groups[i] == groups[b]]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def variance(values: list[float], unbiased: bool) -> float:
    middle = mean(values)
    return sum((v - middle) ** 2 for v in values) / max(len(values) - unbiased, 1)


def grpo(
    rewards, groups, eps=1e-6, unbiased=True, scope="group", in_root=False, by_std=True
) -> list[float]:
    out = []
    for b in range(len(rewards)):
        own = [rewards[i] for i in siblings(groups, b)]
        if len(set(own)) == 1:
            out.append(0.0)
            continue
        spread = variance(own if scope == "group" else rewards, unbiased)
        divisor = (
            (math.sqrt(spread + eps) if in_root else math.sqrt(spread) + eps) if by_std else 1.0
        )
        out.append((rewards[b] - mean(own)) / divisor)
    return out


def rloo(rewards, groups) -> list[float]:
    out = []
    for b in range(len(rewards)):
        others = [rewards[i] for i in siblings(groups, b) if i != b]
        out.append(rewards[b] - mean(others) if others else 0.0)
    return out


def opo(rewards, groups, lengths) -> list[float]:
    out = []
    for b in range(len(rewards)):
        own = siblings(groups, b)
        base = sum(lengths[i] * rewards[i] for i in own) / max(sum(lengths[i] for i in own), 1)
        out.append(rewards[b] - base if len({rewards[i] for i in own}) > 1 else 0.0)
    return out


def gpg(rewards, groups) -> list[float]:
    factor = len(rewards) / max(sum(r != 0 for r in rewards), 1)
    return [
        factor * (rewards[b] - mean([rewards[i] for i in siblings(groups, b)]))
        for b in range(len(rewards))
    ]


def maxrl(rewards, groups, eps=1e-6) -> list[float]:
    out = []
    for b in range(len(rewards)):
        own = mean([rewards[i] for i in siblings(groups, b)])
        out.append((rewards[b] - own) / (own + eps) if own > 0 else 0.0)
    return out


def grpo_passk(rewards, groups) -> list[float]:
    out = []
    for b in range(len(rewards)):
        others = [rewards[i] for i in siblings(groups, b) if i != b]
        out.append(rewards[b] - max(others) if others and rewards[b] > max(others) else 0.0)
    return out


def best_of_n(rewards, groups, keep) -> list[float]:
    """Rows that fewer than `keep` of their group come before, by reward and then by place."""
    kept = []
    for b in range(len(rewards)):
        before = [
            i
            for i in siblings(groups, b)
            if rewards[i] > rewards[b] or (rewards[i] == rewards[b] and i < b)
        ]
        kept.append(rewards[b] > 0 and len(before) < keep)
    return [len(kept) / max(sum(kept), 1) if one else 0.0 for one in kept]


def pass_at_k(rewards, groups, k) -> list[float]:
    """Over all sets of k of the group: the standardised reward of the sets that hold the row, on
    average."""
    out = []
    for b in range(len(rewards)):
        own = siblings(groups, b)
        sets = list(combinations(own, min(k, len(own))))
        scores = [float(any(rewards[i] >= 1 for i in chosen)) for chosen in sets]
        if len(set(scores)) == 1:
            out.append(0.0)
            continue
        sigma = math.sqrt(variance(scores, False))
        held = [
            (score - mean(scores)) / sigma
            for chosen, score in zip(sets, scores, strict=True)
            if b in chosen
        ]
        out.append(mean(held))
    return out


def gae(rewards: list[float], values: list[float], mask: list[int], gamma: float, lam: float):
    """Advantages and returns of one row, from the back; skipped places carry both through."""
    advantages, returns = [0.0] * len(mask), [0.0] * len(mask)
    following, next_value = 0.0, 0.0
    for t in reversed(range(len(mask))):
        if not mask[t]:
            continue
        delta = rewards[t] + gamma * next_value - values[t]
        following = delta + gamma * lam * following
        next_value = values[t]
        advantages[t], returns[t] = following, following + values[t]
    return advantages, returns


def discounted(rewards: list[float], mask: list[int], gamma: float) -> list[float]:
    out, running = [0.0] * len(mask), 0.0
    for t in reversed(range(len(mask))):
        if mask[t]:
            running = rewards[t] + gamma * running
            out[t] = running
    return out


def whiten(values: list[list[float]], mask: list[list[int]], eps=1e-8, in_root=True, unbiased=True):
    flat = [
        v
        for row, kept in zip(values, mask, strict=True)
        for v, m in zip(row, kept, strict=True)
        if m
    ]
    middle, spread = mean(flat), variance(flat, unbiased)
    divisor = math.sqrt(spread + eps) if in_root else math.sqrt(spread) + eps
    return [
        [(v - middle) / divisor if m else 0.0 for v, m in zip(row, kept, strict=True)]
        for row, kept in zip(values, mask, strict=True)
    ]


def optimal_token_baseline(rewards, groups, mask, log_probs, squares) -> list[list[float]]:
    energy: list[list[float]] = []
    places: list[list[int]] = []
    for row, probs, sums in zip(mask, log_probs, squares, strict=True):
        kept = [t for t, m in enumerate(row) if m]
        running, column = 0.0, []
        for t in kept:
            running += 1 - 2 * math.exp(probs[t]) + sums[t]
            column.append(running)
        energy.append(column)
        places.append(kept)
    out = [[0.0] * len(row) for row in mask]
    for b in range(len(rewards)):
        for number, t in enumerate(places[b]):
            acting = [i for i in siblings(groups, b) if len(energy[i]) > number]
            weight = sum(energy[i][number] for i in acting)
            if len(acting) == 1 and sum(len(energy[i]) > 0 for i in siblings(groups, b)) > 1:
                out[b][t] = rewards[b]
            elif len(acting) > 1 and weight > 0:
                out[b][t] = (
                    rewards[b] - sum(energy[i][number] * rewards[i] for i in acting) / weight
                )
    return out
