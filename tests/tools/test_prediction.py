"""The model of many devices: its arithmetic by hand, its reductions against the compiled program."""

import collections
import dataclasses
import json
import math
import re

import jax
import numpy as np
import pytest

from ksim import ConfigError
from ksim.parallel.collectives import bind_axis
from ksim.tools.measure import count_reductions
from ksim.tools.prediction import (
    COUNTS,
    Network,
    OneDevice,
    Setting,
    Size,
    expected_maximum,
    predict,
    read_one_device,
    table,
)
from ksim.tools.scaling import main
from tests.support.hlo import all_reduces
from tests.support.scale import scale
from tests.support.tasks import point_mass_task

NETWORK = Network(latency_s=1e-3, bytes_per_s=1e6)
ONCE = Setting("accumulate", 1, syncs=4, reductions=[(1000, 4), (4, 4)])
SMALL = ["num_envs=16", "rollout_length=4", "num_batches=2", "num_passes=2", "actor_sizes=[4]", "critic_sizes=[4]"]
LINK = ["--latency-us", "20", "--bandwidth-gbytes-per-s", "25"]


def one_device(*sizes, settings=(ONCE,), batch_size=4):
    return OneDevice("Task", "cpu", batch_size, 1000, list(sizes), list(settings))


def test_expected_maximum_of_normal_numbers_is_that_of_the_tables():
    # Of 2: 1 / sqrt(pi). Of 3: 3 / (2 sqrt(pi)). Of 10: 1.5388, Harter 1961.
    known = {1: 0.0, 2: 1 / math.sqrt(math.pi), 3: 1.5 / math.sqrt(math.pi), 10: 1.5388}
    for count, expected in known.items():
        assert expected_maximum(count) == pytest.approx(expected, abs=1e-4)


def test_reduction_takes_steps_of_latency_and_sends_nearly_twice_its_bytes():
    # 4 devices send 2 x 3/4 x 1000 bytes in 1.5 ms; 2 x 3 steps around a ring, 2 x 2 up and down a tree, of 1 ms.
    ring = dataclasses.replace(NETWORK, algorithm="ring")
    assert ring.reduction_s(1000, 4) == pytest.approx(7.5e-3)
    assert NETWORK.reduction_s(1000, 4) == pytest.approx(5.5e-3)
    # 3 devices: 2 x 2/3 x 1000 bytes, and as many steps of a tree as 4.
    assert NETWORK.reduction_s(1000, 3) == pytest.approx(4e-3 + 4e-3 / 3)
    assert ring.reduction_s(1000, 2) == NETWORK.reduction_s(1000, 2) == pytest.approx(3e-3)
    assert ring.reduction_s(1000, 1) == NETWORK.reduction_s(1000, 1) == 0.0


def test_strong_and_weak_scaling_are_those_worked_out_by_hand():
    one = one_device(Size(8, [1.0], [0.5]), Size(4, [0.6], [0.3]))
    found = {(p.kind, p.num_devices): p for p in predict(one, NETWORK, (1, 2, 4, 8))}
    assert found["strong", 1].iteration_s == found["weak", 1].iteration_s == 1.5
    assert found["strong", 1].efficiency == 1.0
    # 4 x (2 + 1) ms for 1000 bytes, 4 x (2 + 0.004) ms for 4.
    reductions_s = 20.016e-3
    two = found["strong", 2]
    assert (two.rollout_s, two.update_s, two.waiting_s) == (0.6, 0.3, 0.0)
    assert two.reduction_s == pytest.approx(reductions_s)
    assert two.efficiency == pytest.approx(1.5 / 2 / (0.9 + reductions_s))
    # With 2 environments each: 0.2 + 2 x 0.1 and 0.1 + 2 x 0.05.
    assert found["strong", 4].rollout_s == pytest.approx(0.4)
    assert found["strong", 4].update_s == pytest.approx(0.2)
    assert found["weak", 2].num_envs == 16
    assert found["weak", 2].efficiency == pytest.approx(1.5 / (1.5 + reductions_s))
    # 8 devices do not divide a minibatch of 4 environments.
    assert ("strong", 8) not in found
    assert ("weak", 8) in found


def test_a_single_size_is_taken_to_have_no_fixed_cost():
    assert one_device(Size(8, [1.0], [0.5])).seconds("rollout_s", 2) == 0.25


def test_devices_wait_for_the_largest_of_independent_times():
    # Differences of 2: a variance of 4 / 2, of 1/4 of the squared median. Updates do not vary.
    one = one_device(Size(8, [1.0, 3.0, 1.0, 3.0], [0.5] * 4))
    assert one.relative_spread("rollout_s") == pytest.approx(math.sqrt(0.5))
    assert one.relative_spread("update_s") == 0.0
    weak = predict(one, NETWORK, (2,))[-1]
    assert weak.waiting_s == pytest.approx(2 * math.sqrt(0.5) / math.sqrt(math.pi))
    # A drift from 1 to 4 s varies as its steps of 1 s do, not as its range.
    assert one_device(Size(8, [1.0, 2.0, 3.0, 4.0], [0.5] * 4)).relative_spread("rollout_s") == pytest.approx(
        math.sqrt(0.5) / 2.5
    )


@pytest.mark.parametrize("syncs", [16, 4, 1])
def test_waiting_is_that_of_simulated_devices_which_meet_at_every_synchronisation(syncs):
    num_devices, num_minibatches, trials = 8, 16, 20_000
    rng = np.random.default_rng(0)
    rollout_td = rng.normal(1.0, 0.1, (trials, num_devices))
    minibatch_tkmd = rng.normal(0.5 / 16, 0.08 / 4, (trials, syncs, num_minibatches // syncs, num_devices))
    simulated_s = np.mean(rollout_td.max(-1) + minibatch_tkmd.sum(2).max(-1).sum(-1))
    # Alternating by twice these, successive differences have their variance.
    times = lambda mean, std: [mean - std / math.sqrt(2), mean + std / math.sqrt(2)] * 100
    size = Size(8, times(1.0, 0.1), times(0.5, 0.08))
    one = one_device(size, settings=[Setting("accumulate", num_minibatches // syncs, syncs, [])])
    (predicted,) = [p for p in predict(one, NETWORK, (num_devices,)) if p.kind == "weak"]
    assert predicted.iteration_s == pytest.approx(simulated_s, rel=5e-3)


def num_bytes(array):
    kind, shape = re.fullmatch(r"([a-z]+\d*)\[([\d,]*)\]", array).groups()
    return {"pred": 1}.get(kind, 4) * math.prod(int(n) for n in shape.split(",") if n)


@pytest.mark.long
@pytest.mark.parametrize("mode", scale(["local"], ["accumulate", "local"]))
def test_reductions_counted_are_those_of_the_compiled_program(mode):
    options = {"num_batches": 4, "num_passes": 2, "grad_sync_mode": mode, "grad_sync_period": 3}
    task = point_mass_task(num_devices=2, **options)
    state = task.layout.place(task.initial_state())
    text = task.layout.map(task.make_train_step(task.layout.axis_name)).lower(state).compile().as_text()
    in_program = collections.Counter({12: text.count(" all-gather(")})  # three numbers for the metrics per device
    for array, times in all_reduces(text).items():
        in_program[num_bytes(array)] += times

    start, axis = point_mass_task(num_devices=1).initial_state(), task.device_axis
    plain = point_mass_task(num_devices=1, **options).make_train_step(None)
    collected = jax.eval_shape(bind_axis(plain.collect, axis), start.envs, start.learner)[1]
    counted = count_reductions(task.make_train_step(axis).learn, axis, start.learner, collected)
    assert counted == in_program


def test_more_of_a_loop_and_every_branch_are_counted():
    def function(x):
        inside = lambda x: jax.lax.fori_loop(0, 3, lambda _, x: jax.lax.psum(x, "i"), x)
        x = jax.lax.scan(lambda x, _: (inside(x), None), x, None, length=5)[0]
        x = jax.lax.cond(x[0] > 0, lambda x: jax.lax.pmax(x, "i"), lambda x: x, x)
        return x * jax.lax.axis_index("i") + jax.lax.psum(x[0], "i")

    assert count_reductions(function, "i", jax.ShapeDtypeStruct((8,), "float32")) == {32: 16, 4: 1}


def test_table_has_a_row_per_size_and_a_column_per_setting():
    local = dataclasses.replace(ONCE, mode="local", period=4)
    one = one_device(Size(8, [1.0], [0.5]), settings=[ONCE, local], batch_size=8)
    lines = table(predict(one, NETWORK, (1, 1024))).splitlines()
    assert lines[0].endswith("| accumulate 1 | local 4 |")
    assert lines[2] == "| strong | 1 | 8 | 1e+03 | 500 | 1.5e+03 (1.00) | 1.5e+03 (1.00) |"
    assert [line.split("|")[1:4] for line in lines[3:]] == [[" weak ", " 1 ", " 8 "], [" weak ", " 1024 ", " 8192 "]]


@pytest.mark.long
def test_command_measures_one_device_and_predicts_again_from_the_file(tmp_path, capsys):
    short = ["--repeats", "2", "--iterations", "2"]
    assert main(["examples.point_mass", *SMALL, "--predict", *LINK, *short, "--out", "first"]) == 0
    record = json.loads((tmp_path / "first.json").read_text())
    one = read_one_device(record["one_device"])
    assert [size.num_envs for size in one.sizes] == [16, 2]
    assert all(len(size.rollout_s) == len(size.update_s) == 4 for size in one.sizes)
    # 2 x 2 minibatches; the largest reduction is that of the gradients, once for each.
    assert {setting.name: setting.syncs for setting in one.settings} == {
        "accumulate 1": 4,
        "accumulate 4": 1,
        "local 4": 1,
    }
    for setting in one.settings:
        assert dict(setting.reductions)[one.gradient_bytes] == setting.syncs
    counts = [p["num_devices"] for p in record["predictions"] if p["kind"] == "weak" and p["setting"] == "local 4"]
    assert counts == list(COUNTS)
    alone = [p for p in record["predictions"] if p["num_devices"] == 1]
    assert all(p["iteration_s"] == pytest.approx(p["rollout_s"] + p["update_s"]) for p in alone)
    assert (tmp_path / "first.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "first.md").read_text() in capsys.readouterr().out

    slower = ["--latency-us", "2000", "--bandwidth-gbytes-per-s", "0.1", "--all-reduce", "ring"]
    assert main(["first.json", "--predict", *slower, "--devices", "2", "4", "--out", "second"]) == 0
    assert "Compiling" not in capsys.readouterr().out
    again = json.loads((tmp_path / "second.json").read_text())
    assert again["one_device"] == record["one_device"]
    assert again["network"] == {"latency_s": 2e-3, "bytes_per_s": 1e8, "algorithm": "ring"}
    assert {p["num_devices"] for p in again["predictions"]} == {1, 2, 4}
    key = lambda p: (p["kind"], p["num_devices"], p["setting"])
    before = {key(p): p["iteration_s"] for p in record["predictions"]}
    assert all(p["iteration_s"] > before[key(p)] for p in again["predictions"] if p["num_devices"] > 1)


GOOD = dataclasses.asdict(one_device(Size(8, [1.0], [0.5])))


@pytest.mark.parametrize(
    "change",
    [
        {"batch_size": 0},
        {"batch_size": "four"},
        {"sizes": []},
        {"sizes": [{"num_envs": 8, "rollout_s": [], "update_s": []}]},
        {"settings": [{"mode": "accumulate", "period": 1, "syncs": 0, "reductions": []}]},
        {"settings": [{"mode": "accumulate", "period": 1, "syncs": 1, "reductions": [[-1, 1]]}]},
        {"colour": "red"},
    ],
)
def test_measurement_with_wrong_numbers_is_refused(change):
    assert read_one_device(json.loads(json.dumps(GOOD))) == one_device(Size(8, [1.0], [0.5]))
    with pytest.raises((ConfigError, TypeError)):
        read_one_device({**GOOD, **change})
