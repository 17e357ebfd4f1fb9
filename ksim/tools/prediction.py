"""A model of the time of an iteration on many devices, from times on one device and a network.

One iteration on n devices, in which gradients are averaged K times:

    T(n) = R + U + w(n) (s_R + sqrt(K) s_U) + the sum of C(n, bytes) over all reductions

R and U are the times of rollout and update on one device with its share of the envs; s_R and s_U are their standard
deviations. w(n) is the expected largest of n standard normal numbers (`expected_maximum`). After the rollout, devices
wait for the slowest one. At each of the K synchronisations they wait for the slowest share of the update: 1/K of it,
with a standard deviation of s_U / sqrt(K). C is the time of a reduction over the network (`Network.reduction_s`).

Assumptions:

- Devices are of one kind, share only the network, and are delayed independently of each other.
- The network connects all pairs of devices alike. Nothing is computed while it sends.
- An update costs the same for every `grad_sync_period`. This neglects that fewer optimizer steps are taken.
"""

import dataclasses
import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import ndtr

from ksim.checks import check_positive, check_rule

ALGORITHMS = ("tree", "ring")
COUNTS = tuple(2**i for i in range(11))
"""Numbers of devices, from 1 to 1,024."""


@dataclasses.dataclass(frozen=True)
class Network:
    """The network between devices.

    Attributes:
        latency_s: Seconds that a message of any length takes at least from one device to another.
        bytes_per_s: Bytes that a device sends per second, while it receives as many.
        algorithm: Algorithm of reductions, one of `ALGORITHMS`.
    """

    latency_s: float
    bytes_per_s: float
    algorithm: str = "tree"

    def reduction_s(self, num_bytes: int, num_devices: int) -> float:
        """Seconds of an all-reduce of `num_bytes` per device.

        Thakur, Rabenseifner and Gropp 2005 (Optimization of Collective Communication Operations in MPICH,
        doi:10.1177/1094342005051521), without the time to add: a reduce-scatter, then an allgather, each in
        ceil(log2 n) steps by recursive halving and doubling (`tree`), or in n - 1 steps around a ring (`ring`). Both
        send 2 (n - 1) / n of the bytes.
        """
        if num_devices == 1:
            return 0.0
        steps = num_devices - 1 if self.algorithm == "ring" else math.ceil(math.log2(num_devices))
        sent_bytes = 2 * (num_devices - 1) / num_devices * num_bytes
        return 2 * steps * self.latency_s + sent_bytes / self.bytes_per_s


@dataclasses.dataclass(frozen=True)
class Size:
    """Times of one device with a number of envs: seconds of rollout and update, one per iteration, in order."""

    num_envs: int
    rollout_s: list[float]
    update_s: list[float]


@dataclasses.dataclass(frozen=True)
class Setting:
    """A setting of gradient synchronisation, with the communication of one iteration.

    Attributes:
        syncs: How often gradients are averaged per iteration.
        reductions: Pairs of the bytes that a device contributes to a reduction, and the number of such reductions.
    """

    mode: str
    period: int
    syncs: int
    reductions: list[tuple[int, int]]

    @property
    def name(self) -> str:
        """The mode and period, such as `accumulate 4`."""
        return f"{self.mode} {self.period}"


@dataclasses.dataclass(frozen=True)
class OneDevice:
    """A task, measured on one device.

    Attributes:
        batch_size: Envs per minibatch of the largest size; must be divisible by the number of devices.
        gradient_bytes: Bytes of the gradients of all parameters.
        sizes: Times by number of envs, the largest first; the largest is scaled.
        settings: Settings of synchronisation to predict, the task's own first.
    """

    task: str
    device: str
    batch_size: int
    gradient_bytes: int
    sizes: list[Size]
    settings: list[Setting]

    @property
    def num_envs(self) -> int:
        """The number of envs to scale."""
        return self.sizes[0].num_envs

    def seconds(self, half: str, num_envs: float) -> float:
        """The typical seconds of a half, `rollout_s` or `update_s`, with `num_envs` envs on a device.

        Medians are interpolated linearly. Below the smallest size, the line through the two smallest sizes is
        extended; its value at zero envs is the fixed cost. With a single size, the fixed cost is zero.
        """
        ordered = sorted(self.sizes, key=lambda size: size.num_envs)
        counts = [size.num_envs for size in ordered]
        medians = [statistics.median(getattr(size, half)) for size in ordered]
        fixed = 0.0
        if len(ordered) > 1:
            slope = (medians[1] - medians[0]) / (counts[1] - counts[0])
            fixed = min(max(medians[0] - slope * counts[0], 0.0), medians[0])
        return float(np.interp(num_envs, [0, *counts], [fixed, *medians]))

    def relative_spread(self, half: str) -> float:
        """The standard deviation of a half over its median, over all sizes.

        From differences between successive iterations (von Neumann, Kent, Bellinson and Hart 1941, The Mean Square
        Successive Difference): devices share a slow drift, so it causes no waiting.
        """
        squares = [
            np.mean(np.square(np.diff(times))) / 2 / statistics.median(times) ** 2
            for size in self.sizes
            if len(times := getattr(size, half)) > 1 and statistics.median(times) > 0
        ]
        return math.sqrt(np.mean(squares)) if squares else 0.0


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The predicted times of one iteration on several devices.

    Attributes:
        kind: `strong` or `weak`.
        waiting_s: Seconds for which the typical device waits for the slowest.
        efficiency: Speed per device, divided by the speed of one device alone.
    """

    kind: str
    num_devices: int
    num_envs: int
    setting: str
    rollout_s: float
    update_s: float
    waiting_s: float
    reduction_s: float
    efficiency: float

    @property
    def iteration_s(self) -> float:
        """Seconds of the iteration."""
        return self.rollout_s + self.update_s + self.waiting_s + self.reduction_s


@functools.cache
def expected_maximum(count: int) -> float:
    """The expected largest of `count` independent standard normal numbers.

    The integral of x over the distribution of the largest, Phi(x)^n (David and Nagaraja 2003, Order Statistics,
    section 3.1), in parts: 1 - Phi^n above zero, less Phi^n below.
    """
    x = np.linspace(0.0, 10.0, 10_001)
    return float(np.trapezoid((1 - ndtr(x) ** count) - ndtr(-x) ** count, x))


def predict(one: OneDevice, network: Network, counts: Sequence[int] = COUNTS) -> list[Prediction]:
    """Predictions for each number of devices, for strong and weak scaling and every setting.

    Strong scaling is left out for numbers of devices that do not divide the minibatches.
    """
    wanted = [("strong", n) for n in counts if one.batch_size % n == 0] + [("weak", n) for n in counts]
    return [_predicted(one, network, kind, n, setting) for kind, n in wanted for setting in one.settings]


def _predicted(one: OneDevice, network: Network, kind: str, num_devices: int, setting: Setting) -> Prediction:
    share = one.num_envs / num_devices if kind == "strong" else one.num_envs
    rollout_s, update_s = (one.seconds(half, share) for half in ("rollout_s", "update_s"))
    rollout_std_s = rollout_s * one.relative_spread("rollout_s")
    update_std_s = update_s * one.relative_spread("update_s")
    waiting_s = expected_maximum(num_devices) * (rollout_std_s + math.sqrt(setting.syncs) * update_std_s)
    reduction_s = sum(times * network.reduction_s(size, num_devices) for size, times in setting.reductions)
    alone_s = one.seconds("rollout_s", one.num_envs) + one.seconds("update_s", one.num_envs)
    ideal_s = alone_s / num_devices if kind == "strong" else alone_s
    return Prediction(
        kind=kind,
        num_devices=num_devices,
        num_envs=one.num_envs * (1 if kind == "strong" else num_devices),
        setting=setting.name,
        rollout_s=rollout_s,
        update_s=update_s,
        waiting_s=waiting_s,
        reduction_s=reduction_s,
        efficiency=ideal_s / (rollout_s + update_s + waiting_s + reduction_s),
    )


def table(predictions: Sequence[Prediction]) -> str:
    """The predictions as a Markdown table: milliseconds per iteration and efficiency for every setting."""
    settings = list(dict.fromkeys(p.setting for p in predictions))
    rows: dict[tuple[str, int], list[Prediction]] = {}
    for p in predictions:
        rows.setdefault((p.kind, p.num_devices), []).append(p)
    lines = [
        f"| scaling | devices | environments | rollout, ms | update, ms | {' | '.join(settings)} |",
        "|---|---|---|---|---|" + "---|" * len(settings),
    ]
    for (kind, count), row in rows.items():
        halves = f"{1e3 * row[0].rollout_s:.3g} | {1e3 * row[0].update_s:.3g}"
        cells = " | ".join(f"{1e3 * p.iteration_s:.3g} ({p.efficiency:.2f})" for p in row)
        lines.append(f"| {kind} | {count} | {row[0].num_envs} | {halves} | {cells} |")
    return "\n".join(lines)


def read_one_device(record: Mapping[str, Any]) -> OneDevice:
    """A measurement from its dictionary, as made by `dataclasses.asdict`.

    Raises:
        KeyError, TypeError: A field is missing or unknown, or has the wrong type.
        ConfigError: A number is out of range.
    """
    sizes = [Size(**size) for size in record["sizes"]]
    settings = [
        Setting(**{**setting, "reductions": [(int(size), int(times)) for size, times in setting["reductions"]]})
        for setting in record["settings"]
    ]
    check_rule(f"sizes ({len(sizes)}) and settings ({len(settings)})", bool(sizes and settings), "at least one of each")
    one = OneDevice(**{**record, "sizes": sizes, "settings": settings})
    check_positive("batch_size", one.batch_size)
    for size in sizes:
        check_positive("num_envs", size.num_envs)
        for half in ("rollout_s", "update_s"):
            times = getattr(size, half)
            check_rule(f"{half} ({times})", len(times) > 0, "at least one time")
            for seconds in times:
                check_positive(half, seconds, allow_zero=True)
    for setting in settings:
        check_positive("syncs", setting.syncs)
        for num_bytes, times in setting.reductions:
            check_positive("bytes of a reduction", num_bytes, allow_zero=True)
            check_positive("number of reductions", times)
    return one
