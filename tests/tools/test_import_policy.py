"""Policies of rsl_rl and Brax as checkpoints of a task."""

import itertools
import pickle
import sys
import types
import zipfile
from collections import OrderedDict

import jax
import mujoco
import numpy as np
import pytest

import ksim
from ksim.mdp import observations
from ksim.physics.names import ModelNames
from ksim.tools.import_policy import (
    Slot,
    action_order,
    column_order,
    import_policy,
    joints_of,
    main,
    read_weights,
)
from tests.support.tasks import BipedConfig, BipedTask

ORDER = ("base_ang_vel", "projected_gravity", "joint_pos", "joint_vel", "actions", "velocity_commands")
SIZES = {
    "base_ang_vel": 3,
    "projected_gravity": 3,
    "joint_pos": 2,
    "joint_vel": 2,
    "actions": 2,
    "velocity_commands": 3,
}
JOINTS = ("right_hip", "left_hip")
HIDDEN = (6, 5)


class Storage:
    """A storage of PyTorch."""

    def __init__(self, array):
        self.array = np.ascontiguousarray(array, np.float32)


class Tensor:
    """A tensor of PyTorch as `torch.save` writes it."""

    def __init__(self, array):
        self.storage, self.shape = Storage(array), np.shape(array)

    def __reduce__(self):
        strides = tuple(x // 4 for x in np.empty(self.shape, np.float32).strides)
        arguments = (self.storage, 0, self.shape, strides, False, OrderedDict())
        return sys.modules["torch._utils"]._rebuild_tensor_v2, arguments


def save_torch(path, content, monkeypatch):
    """Writes a file as `torch.save` does."""

    def _rebuild_tensor_v2(*_): ...

    class FloatStorage: ...

    for name, thing in (("torch", FloatStorage), ("torch._utils", _rebuild_tensor_v2)):
        thing.__module__, thing.__qualname__ = name, thing.__name__
        module = types.ModuleType(name)
        setattr(module, thing.__name__, thing)
        monkeypatch.setitem(sys.modules, name, module)
    storages = []

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj):
            if not isinstance(obj, Storage):
                return None
            storages.append(obj.array)
            return "storage", FloatStorage, str(len(storages) - 1), "cpu", obj.array.size

    with zipfile.ZipFile(path, "w") as archive:
        with archive.open("model/data.pkl", "w") as file:
            Pickler(file, 2).dump(content)
        for i, array in enumerate(storages):
            archive.writestr(f"model/data/{i}", array.tobytes())


def mlp(rng, sizes):
    return [(rng.normal(size=(n, m)) / np.sqrt(m), rng.normal(size=n)) for m, n in itertools.pairwise(sizes)]


def content_of(version, layers, norm):
    """A checkpoint as a version of rsl_rl lays it out, with the names that its `state_dict` has."""
    model = lambda prefix: {
        f"{prefix}{2 * i}.{part}": Tensor(x)
        for i, layer in enumerate(layers)
        for part, x in zip(("weight", "bias"), layer, strict=True)
    }
    norm = {name: Tensor(x) for name, x in norm.items()}
    within = lambda prefix: {f"{prefix}{name}": x for name, x in norm.items()}
    noise = Tensor(np.ones(2))
    if version == 2:
        return {"model_state_dict": {"std": noise, **model("actor."), **model("critic.")}, "obs_norm_state_dict": norm}
    if version == 3:
        state = {"std": noise, **model("actor."), **within("actor_obs_normalizer."), **model("critic.")}
        return {"model_state_dict": {**state, **within("critic_obs_normalizer.")}}
    state = {**within("obs_normalizer."), "distribution.std_param": noise, **model("mlp.")}
    return {"actor_state_dict": state, "critic_state_dict": model("mlp.")}


@pytest.fixture
def rsl_rl(tmp_path, monkeypatch, request):
    """A checkpoint of a version of rsl_rl, by default of 2: its path, layers, and statistics."""
    rng = np.random.default_rng(0)
    layers = mlp(rng, [sum(SIZES.values()), *HIDDEN, 2])
    mean, std = rng.normal(size=sum(SIZES.values())), rng.uniform(0.5, 2.0, sum(SIZES.values()))
    norm = {"_mean": mean[None], "_var": std[None] ** 2, "_std": std[None]}
    path = tmp_path / "model_1500.pt"
    save_torch(path, {**content_of(getattr(request, "param", 2), layers, norm), "iter": 1500}, monkeypatch)
    return path, layers, mean, std


def forward(x, layers):
    for weight, bias in layers[:-1]:
        y = weight @ x + bias
        x = np.where(y > 0, y, np.expm1(y))
    return layers[-1][0] @ x + layers[-1][1]


SETTINGS = (f"actor_sizes={list(HIDDEN)}".replace(" ", ""), "critic_sizes=[8]")


def run(path, out, *arguments):
    return main(["tests.support.tasks", str(path), *SETTINGS, *arguments, "--task", "BipedTask", "--out", str(out)])


@pytest.mark.parametrize("rsl_rl", [2, 3, 5], indirect=True)
def test_policy_of_rsl_rl_acts_as_there_on_observations_and_joints_in_another_order(rsl_rl, tmp_path, capsys):
    path, layers, mean, std = rsl_rl
    out = tmp_path / "imported"
    assert run(path, out, "--order", *ORDER, "--joints", *JOINTS) == 0
    shown = capsys.readouterr().out
    assert "joint_velocity" in shown
    policy = ksim.load_policy(out)
    rng = np.random.default_rng(1)
    there = {name: rng.normal(size=size) for name, size in SIZES.items()}
    expected = forward((np.concatenate([there[name] for name in ORDER]) - mean) / (std + 1e-2), layers)
    swap = lambda x: x[::-1]
    # The task's order: gravity, angular velocity, joints, joints' velocities, last action, command; left hip first.
    here = [there["projected_gravity"], there["base_ang_vel"], *(swap(there[x]) for x in ("joint_pos", "joint_vel"))]
    here += [swap(there["actions"]), there["velocity_commands"]]
    np.testing.assert_allclose(policy(np.concatenate(here)), swap(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_policy_of_rsl_rl_is_evaluated(rsl_rl, tmp_path):
    out = tmp_path / "imported"
    assert run(rsl_rl[0], out) == 0
    config = BipedConfig(
        num_devices=1, run_mode="eval", checkpoint=str(out), actor_sizes=list(HIDDEN), critic_sizes=[8], eval_num_envs=2
    )
    assert BipedTask(config).run().exit_code == 0


def test_activation_is_the_default_there_unless_it_is_given(rsl_rl, tmp_path, capsys):
    path, layers, mean, std = rsl_rl
    config = BipedConfig(num_devices=1, actor_sizes=list(HIDDEN), critic_sizes=[8], activation="tanh")
    with pytest.raises(ksim.ConfigError, match=r"Give activation=elu, .* does not name its activation; elu is the"):
        import_policy(BipedTask(config), path, tmp_path / "refused")
    out = tmp_path / "imported"
    assert run(path, out, "activation=tanh") == 0
    x = np.random.default_rng(1).normal(size=len(mean))
    y = (x - mean) / (std + 1e-2)
    for weight, bias in layers[:-1]:
        y = np.tanh(weight @ y + bias)
    np.testing.assert_allclose(ksim.load_policy(out)(x), layers[-1][0] @ y + layers[-1][1], rtol=1e-4, atol=1e-5)


def test_observations_are_not_clipped_as_there(rsl_rl, tmp_path):
    path, layers, mean, std = rsl_rl
    assert run(path, tmp_path / "imported") == 0
    far = np.full(len(mean), 30.0)
    expected = forward(far, layers)
    found = ksim.load_policy(tmp_path / "imported")(mean + far * (std + 1e-2))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


JOINTS_OF_A_LEG = ("toe", "a", "b", "c")


@pytest.mark.parametrize(
    ("slots", "joints", "columns"),
    [
        # Each slot is a number of columns and its joints. A history has several rows of the same joints.
        ([(3, "abc"), (3, "abc")], "c b a", [2, 1, 0, 5, 4, 3]),
        ([(3, "cba"), (2, "")], "a b c", [2, 1, 0, 3, 4]),
        ([(6, "abc")], "b toe c a", [2, 0, 1, 5, 3, 4]),
        ([(4, ("toe", "a", "b", "c"))], "c b a toe", [3, 2, 1, 0]),
    ],
)
def test_joints_of_each_observation_are_brought_into_its_own_order(slots, joints, columns):
    ends = np.cumsum([0, *(size for size, _ in slots)])
    slots = [Slot(str(i), None, int(ends[i]), size, tuple(own)) for i, (size, own) in enumerate(slots)]
    found = column_order(slots, [], joints.split(), JOINTS_OF_A_LEG)
    assert found.tolist() == columns


@pytest.mark.parametrize(
    ("slot", "joints", "message"),
    [
        ((3, "abc"), "a b", "--joints must be the task's joints in another order, toe a b c"),
        ((3, "abc"), "a b c tail", "--joints must be the task's joints in another order"),
        ((4, "abc"), "c b a", "--joints cannot order legs, which has 4 numbers of 3 joints"),
    ],
)
def test_joints_that_do_not_order_an_observation_are_refused(slot, joints, message):
    size, own = slot
    with pytest.raises(ksim.ConfigError, match=message):
        column_order([Slot("legs", None, 0, size, tuple(own))], [], joints.split(), JOINTS_OF_A_LEG)


def test_actions_are_ordered_by_the_joints_that_are_driven():
    text = "".join(f'<body><joint name="{name}"/><geom size=".1"/></body>' for name in JOINTS_OF_A_LEG)
    motors = "".join(f'<motor joint="{name}"/>' for name in "bac")
    text = f"<mujoco><worldbody>{text}</worldbody><actuator>{motors}</actuator></mujoco>"
    names = ModelNames(mujoco.MjModel.from_xml_string(text))
    assert action_order(["c", "b", "a"], names, 3).tolist() == [1, 2, 0]
    with pytest.raises(ksim.ConfigError, match="--joints cannot order actions of 2 numbers for 3 actuators"):
        action_order(["c", "b", "a"], names, 2)
    for term in (observations.LastAction(), observations.History(observations.PreviousAction(), steps=2)):
        assert joints_of(term, names) == ("b", "a", "c")
    assert joints_of(observations.JointPosition(), names) == JOINTS_OF_A_LEG
    assert joints_of(observations.JointVelocity(joints=("c", "a")), names) == ("c", "a")
    assert joints_of(observations.ProjectedGravity(), names) == ()


def test_policy_with_a_memory_is_refused(tmp_path, monkeypatch, capsys):
    weight = Tensor(np.ones((2, 2)))
    state = {"rnn.rnn.weight_ih_l0": weight, "mlp.0.weight": weight, "mlp.0.bias": Tensor(np.ones(2))}
    save_torch(tmp_path / "model.pt", {"actor_state_dict": state}, monkeypatch)
    assert run(tmp_path / "model.pt", tmp_path / "out") == 2
    assert "it has a memory or convolutions" in capsys.readouterr().out


def test_weights_are_read_as_they_were_written(rsl_rl):
    path, layers, *_ = rsl_rl
    weights = read_weights(path)
    for (weight, bias), (expected, expected_bias) in zip(weights.layers, layers, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-6)
        np.testing.assert_allclose(bias, expected_bias, rtol=1e-6)
    assert (weights.hidden_sizes, weights.activation, weights.squash) == (list(HIDDEN), "elu", False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--order", *ORDER[1:]), "--order lacks base_angular_velocity"),
        (
            ("--order", *ORDER, "height_scan"),
            "--order has 'height_scan', but no observation of the task is left for it",
        ),
        (("--joints", "left_hip", "tail"), "--joints must be the task's joints in another order, left_hip right_hip"),
        (("actor_sizes=[6]",), r"Give actor_sizes=[6,5]"),
        (("squash=true",), "Give squash=false"),
        (("model=gru",), "Give model=mlp"),
    ],
)
def test_policy_that_does_not_fit_is_refused_with_what_to_give(rsl_rl, tmp_path, capsys, arguments, message):
    given = [x for x in SETTINGS if x.partition("=")[0] not in {y.partition("=")[0] for y in arguments}]
    command = ["tests.support.tasks", str(rsl_rl[0]), *given, "--task", "BipedTask", "--out", str(tmp_path / "out")]
    assert (
        main([*command[:2], *[x for x in arguments if "=" in x], *command[2:], *[x for x in arguments if "=" not in x]])
        == 2
    )
    assert message in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


class Shell:
    """A thing whose unpickling runs a command."""

    def __reduce__(self):
        return sys.modules["os"].system, ("touch ran",)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "neither a checkpoint of rsl_rl"), (pickle.dumps(Shell()), "posix.system, which is no array"),
     (pickle.dumps({"a": 1}), "neither a checkpoint of rsl_rl"),
     (pickle.dumps((None, {"params": {"hidden_0": 0, "LayerNorm_0": 0}})), "it has layers that are not dense")],
)  # fmt: skip
def test_file_that_is_none_is_refused_and_runs_nothing(content, message, tmp_path, capsys):
    path = tmp_path / "weights"
    path.write_bytes(content)
    assert run(path, tmp_path / "out") == 2
    assert message in capsys.readouterr().out
    assert not (tmp_path / "ran").exists()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_policy_of_brax_acts_as_there(tmp_path):
    # No `import`: types are checked where Brax is not installed too.
    model, running_statistics, specs, networks = (
        pytest.importorskip(name, reason="needs brax: pip install -e '.[brax]'")
        for name in (
            "brax.io.model",
            "brax.training.acme.running_statistics",
            "brax.training.acme.specs",
            "brax.training.agents.ppo.networks",
        )
    )
    num_obs = sum(SIZES.values())
    made = networks.make_ppo_networks(
        num_obs, 2, preprocess_observations_fn=running_statistics.normalize, policy_hidden_layer_sizes=HIDDEN
    )
    normalizer = running_statistics.init_state(specs.Array((num_obs,), np.dtype("float32")))
    rows = np.random.default_rng(2).normal(2.0, 3.0, (100, num_obs)).astype(np.float32)
    normalizer = running_statistics.update(normalizer, rows)
    params = (normalizer, made.policy_network.init(jax.random.key(0)), made.value_network.init(jax.random.key(1)))
    model.save_params(str(tmp_path / "params"), params)
    act = networks.make_inference_fn(made)(params, deterministic=True)
    out = tmp_path / "imported"
    settings = ("activation=silu", "squash=true", "std=learned")
    assert run(tmp_path / "params", out, *settings) == 0
    policy = ksim.load_policy(out)
    np.testing.assert_allclose(policy(rows[0]), act(rows[0], jax.random.key(3))[0], rtol=1e-3, atol=1e-4)
