"""The kernels a second time: plain Python floats, one latent number at a time."""

import math


def log_density(value: float, mean: float, std: float) -> float:
    return -((value - mean) ** 2) / (2 * std**2) - math.log(std) - math.log(2 * math.pi) / 2


def sde(x: float, v: float, s: float, s_next: float, a: float) -> tuple[float, float]:
    dt = s_next - s
    mean = x * (1 + a**2 * dt / (2 * s)) + v * (1 + a**2 * (1 - s) / (2 * s)) * dt
    return mean, a * math.sqrt(-dt)


def flow(
    x: float, v: float, s: float, s_next: float, eta: float, s_first: float
) -> tuple[float, float]:
    return sde(x, v, s, s_next, eta * math.sqrt(s / (1 - (s_first if s == 1 else s))))


def dance(
    x: float, v: float, s: float, s_next: float, eta: float, s_first: float
) -> tuple[float, float]:
    return sde(x, v, s, s_next, eta)


def cps(
    x: float, v: float, s: float, s_next: float, eta: float, s_first: float
) -> tuple[float, float]:
    std = s_next * math.sin(eta * math.pi / 2)
    mean = (x - s * v) * (1 - s_next) + (x + (1 - s) * v) * math.sqrt(s_next**2 - std**2)
    return mean, std


def dpm_solver(xs: list[tuple[float, float]], levels: list[float]) -> float:
    """DPM-Solver++(2M) in its textbook form with exponentials, from velocities `(x_0, v)` step by
    step."""
    x, before = xs[0][0], None
    for (_, v), s, s_next in zip(xs, levels[:-1], levels[1:], strict=True):
        clean = x - s * v
        lam, lam_next = math.log((1 - s) / s), math.log((1 - s_next) / s_next)
        h, target = lam_next - lam, clean
        if before is not None:
            r = (lam - before[1]) / h
            target = (1 + 1 / (2 * r)) * clean - 1 / (2 * r) * before[0]
        x = s_next / s * x - (1 - s_next) * math.expm1(-h) * target
        before = (clean, lam)
    return x
