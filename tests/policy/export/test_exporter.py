"""run_mode=export, and the parity of what it writes with JAX on observations that were recorded."""

import json
import shutil
import sys
from unittest.mock import Mock

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import ksim  # noqa: E402
from examples.walking import HumanoidWalkingConfig, HumanoidWalkingTask  # noqa: E402
from ksim import ConfigError  # noqa: E402
from ksim.checkpoint.format import read_checkpoint  # noqa: E402
from ksim.checkpoint.options import make_config  # noqa: E402
from ksim.errors import RunError  # noqa: E402
from ksim.nn import AbstractActorCritic, ActorCriticOutput, Gaussian, GruActorCritic, MlpActorCritic  # noqa: E402
from ksim.nn.actor_critic import initial_carries  # noqa: E402
from ksim.nn.normalizer import NormalizedActorCritic, ObservationNormalizer  # noqa: E402
from ksim.policy.export import exporter  # noqa: E402
from ksim.policy.load import load_task_policy  # noqa: E402
from ksim.rollout.episodes import advance_episodes, start_episodes  # noqa: E402
from tests.support.checkpoints import save_run  # noqa: E402
from tests.support.exports import exported_files  # noqa: E402
from tests.support.scale import long, scale  # noqa: E402
from tests.support.still import Memoryless  # noqa: E402
from tests.support.tasks import WITHOUT_REPORTS, CartPoleConfig, CartPoleTask, point_mass_task  # noqa: E402

NUM_STEPS = 12
NUM_ENVS = 4
TASKS = {
    "cart-pole": lambda: CartPoleTask(CartPoleConfig(num_devices=1)),
    "humanoid": lambda: HumanoidWalkingTask(HumanoidWalkingConfig()),
}


@pytest.fixture(scope="module", params=["cart-pole", pytest.param("humanoid", marks=pytest.mark.long)])
def recorded(request):
    """A task, and observations of a short rollout of it, (time, env, features)."""
    task = TASKS[request.param]()
    task.environment = env = task.eval_environment
    model = NormalizedActorCritic(task.initial_learner().network, ObservationNormalizer.init(task.obs_sizes))

    @jax.jit
    def record(key):
        episodes = start_episodes(env, model, key, NUM_ENVS)
        return advance_episodes(env, model, episodes, NUM_STEPS, lambda before, *_: before.obs)[1]

    return task, record(jax.random.key(0))


def policy_of(task, obs_te, network, std):
    """A policy with statistics of these observations and weights whose actions are not near 0."""
    action_size = task.environment.action_size
    net = network(task.obs_sizes, action_size, std=std, key=jax.random.key(1))
    keys = iter(jax.random.split(jax.random.key(2), 100))
    net = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(next(keys), x.shape) if eqx.is_array(x) else x, net)
    return NormalizedActorCritic(net, ObservationNormalizer.init(task.obs_sizes).update(obs_te, None))


@pytest.mark.parametrize("std", ["state_independent", *scale([], long(("learned",)))])
@pytest.mark.parametrize("network", [MlpActorCritic, GruActorCritic])
def test_exported_policies_act_as_jax_on_recorded_observations(recorded, network, std, tmp_path):
    task, obs_te = recorded
    model = policy_of(task, obs_te, network, std)
    files = exported_files(task, model, tmp_path / "run/checkpoints/5", tmp_path / "run/export")
    in_onnx = exporter.onnx_step(files["policy.onnx"])
    in_jax = jax.jit(jax.export.deserialize(bytearray(files["policy.jaxexport"])).call)
    forward = jax.jit(jax.vmap(model))
    parts = json.loads(files["policy.json"])["memory"]
    carry, memory = initial_carries(model, NUM_ENVS), None
    in_jax_memory = {p["input"]: jnp.broadcast_to(jnp.array(p["start"]), (NUM_ENVS, *p["shape"])) for p in parts}
    sizes = []
    for t in range(NUM_STEPS):
        obs = jax.tree.map(lambda x, t=t: x[t], obs_te)
        output, carry = forward(obs, carry)
        expected = output.distribution.mode()
        action, memory = in_onnx(obs, memory)
        np.testing.assert_allclose(action, expected, atol=1e-5, rtol=0)
        action, in_jax_memory = in_jax({"obs": obs["actor"]}, in_jax_memory)
        np.testing.assert_allclose(action, expected, atol=1e-5, rtol=0)
        sizes.append(np.abs(expected).max())
    assert min(sizes) > 0.05  # there was something to compare


class Counts(AbstractActorCritic):
    """A policy with a memory of twelve parts, one of them a whole number."""

    weights: list[jax.Array]

    def initial_carry(self):
        return [jnp.full(i + 1, 0.1 * i) for i in range(11)] + [jnp.zeros((), jnp.int32)]

    def __call__(self, obs, carry):
        *parts, count = carry
        # Of the mean: a sum of so many numbers would be no more exact than their order.
        parts = [jnp.tanh(x + 0.1 * i * jnp.mean(obs["actor"])) for i, x in enumerate(parts)]
        mean = sum(w * jnp.mean(x) for w, x in zip(self.weights, parts, strict=True)) + 0.1 * count
        return ActorCriticOutput(Gaussian(mean, jnp.ones_like(mean)), jnp.zeros(())), [*parts, count + 1]


def test_parts_of_a_memory_keep_their_order_and_their_type(recorded, tmp_path):
    task, obs_te = recorded
    size = task.environment.action_size
    weights = list(jax.random.normal(jax.random.key(0), (11, size)))
    model = NormalizedActorCritic(Counts(weights), ObservationNormalizer.init(task.obs_sizes).update(obs_te, None))
    files = exported_files(task, model, tmp_path / "run/checkpoints/5", tmp_path / "run/export")
    outputs = [o.name for o in onnx.load_from_string(files["policy.onnx"]).graph.output]
    assert outputs == ["action", *(f"next_memory_{i}" for i in range(12))]
    assert [part["dtype"] for part in json.loads(files["policy.json"])["memory"]] == ["float32"] * 11 + ["int32"]
    assert exporter.largest_difference(files["policy.onnx"], model) < 1e-5


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run of the cart-pole with a memory, of one iteration."""
    path = tmp_path_factory.mktemp("run") / "run"
    save_run(CartPoleTask(CartPoleConfig(num_devices=1, num_envs=4, model="gru")), path)
    return path


def export(run_dir, *overrides):
    argv = ["run_mode=export", f"checkpoint={run_dir}", *overrides]
    return CartPoleTask(make_config(CartPoleConfig(), argv, "cart_pole_task")).run().exit_code


@pytest.fixture(scope="module")
def exported(run_dir, tmp_path_factory):
    """The directory of the run's policy, which no test changes."""
    path = tmp_path_factory.mktemp("exported") / "policy"
    export(run_dir, f"export_dir={path}")
    return path


FILES = {"policy.onnx", "policy.jaxexport", "policy.json", "checkpoints", "robot"}


def test_run_mode_export_writes_what_the_docs_list_and_says_where(run_dir, capsys):
    assert export(run_dir) == 0
    out = capsys.readouterr().out
    assert {path.name for path in (run_dir / "export").iterdir()} == FILES
    assert "policy.onnx (metadata inside)" in out
    assert "the largest difference of an action" in out
    metadata = json.loads((run_dir / "export/policy.json").read_text())
    written = onnx.load(run_dir / "export/policy.onnx")
    assert {p.key: json.loads(p.value) for p in written.metadata_props} == metadata
    assert [i.name for i in written.graph.input] == ["obs", "memory_0"]
    assert [o.name for o in written.graph.output] == ["action", "next_memory_0"]


POLICY = {
    "task": "tests.support.tasks.CartPoleTask",
    "checkpoint": {"path": "checkpoints/1", "iteration": 1},
    "control_rate_hz": pytest.approx(50),
    "control_dt_s": 0.02,
    "physics_dt_s": 0.01,
    "engine": "mujoco",
    # From the middle of the motors' ranges to their ends.
    "action_to_ctrl": {"offset": [0, 0], "scale": [8.0, 0.2], "lower": [-8.0, -0.2], "upper": [8.0, 0.2]},
    "memory": [{"input": "memory_0", "output": "next_memory_0", "shape": [8], "dtype": "float32", "start": [0.0] * 8}],
}
TERMS = [("position", "JointPosition", 0, 2), ("velocity", "JointVelocity", 2, 2), ("action", "LastAction", 4, 2),
         ("place", "CommandValue", 6, 1)]  # fmt: skip


def test_metadata_say_all_that_it_takes_to_run_the_policy(exported):
    metadata = json.loads((exported / "policy.json").read_text())
    assert {name: metadata[name] for name in POLICY} == POLICY
    joints, actuators = metadata["joints"], metadata["actuators"]
    assert joints["names"] == actuators["names"] == actuators["joints"] == ["rail", "pivot"]
    assert joints["default_position"] == [0, 0]
    (group,) = metadata["observations"].values()
    assert (group["input"], group["size"], group["clip"]) == ("obs", 7, None)  # it has seen nothing
    assert (actuators["gear"], actuators["gain"]) == ([1, 1], [1, 1])
    assert [(term["name"], term["class"], term["start"], term["size"]) for term in group["terms"]] == TERMS
    assert all("noise" not in term["args"] for term in group["terms"])
    assert all(len(term["mean"]) == len(term["scale"]) == term["size"] for term in group["terms"])
    assert metadata["commands"]["place"]["args"]["command"]["class"] == "JointPoseCommand"
    assert metadata["commands"]["place"]["size"] == 1
    assert len(metadata["git"]["revision"]) == 40


def test_exported_directory_stands_for_its_policy(run_dir, exported, tmp_path):
    shutil.copytree(exported, tmp_path / "published")
    original, published = ksim.load_policy(run_dir), ksim.load_policy(tmp_path / "published")
    obs = np.ones(7, np.float32)
    np.testing.assert_array_equal(published(obs), original(obs))
    saved = read_checkpoint(tmp_path / "published/checkpoints/1")
    assert not [name for name in saved.arrays if name.startswith(("envs.", "learner.opt"))]
    # Exported again, from itself and into itself.
    assert export(tmp_path / "published", f"export_dir={tmp_path / 'published'}") == 0
    np.testing.assert_array_equal(ksim.load_policy(tmp_path / "published")(obs), ksim.load_policy(run_dir)(obs))


def test_export_replaces_the_policy_of_an_earlier_one_but_no_run(run_dir, tmp_path):
    later = tmp_path / "out/checkpoints/9"
    later.mkdir(parents=True)
    export(run_dir, f"export_dir={tmp_path / 'out'}")
    assert [path.name for path in later.parent.iterdir()] == ["1"]
    with pytest.raises(ConfigError, match="is the directory of a run"):
        export(run_dir, f"export_dir={run_dir}")


class PretrainedCartPole(CartPoleTask):
    """A cart-pole with a policy of its own."""


@pytest.fixture
def pretrained(exported, monkeypatch):
    """The task with its policy."""
    monkeypatch.setattr(PretrainedCartPole, "pretrained", exported)
    return PretrainedCartPole


def pretrained_config(*argv):
    return make_config(CartPoleConfig(), argv, "pretrained_cart_pole", PretrainedCartPole.pretrained)


def test_pretrained_stands_for_the_policy_that_comes_with_a_task(pretrained):
    config = pretrained_config("run_mode=eval", "checkpoint=pretrained")
    assert config.model == "gru"  # as it was trained
    assert config.checkpoint == str(pretrained.pretrained)
    # Not beside the policy, which may be a part of an installed package.
    assert config.eval_output == "runs/pretrained_cart_pole/pretrained"
    assert pretrained_config("run_mode=eval", "checkpoint=pretrained", "eval_output=here").eval_output == "here"
    assert pretrained(CartPoleConfig(load_weights="pretrained")).config.load_weights == str(pretrained.pretrained)
    with pytest.raises(ConfigError, match=r"checkpoint \(pretraned\) does not exist\. Did you mean 'pretrained'\?"):
        pretrained(CartPoleConfig(run_mode="view", checkpoint="pretraned"))
    with pytest.raises(ConfigError, match="checkpoint=pretrained is for tasks that come with a policy"):
        CartPoleTask(CartPoleConfig(run_mode="view", checkpoint="pretrained"))


@pytest.mark.long
def test_pretrained_policy_is_evaluated_and_trained_further(pretrained, tmp_path):
    config = pretrained_config(
        "run_mode=eval", "checkpoint=pretrained", "eval_num_envs=2", "video=false", "plots=false"
    )
    assert pretrained(config).run().exit_code == 0
    assert (tmp_path / "runs/pretrained_cart_pole/pretrained/evaluation.json").exists()
    options = {"model": "gru", "num_envs": 4, "rollout_length": 4, "max_iterations": 1, "num_devices": 1}
    config = CartPoleConfig(load_weights="pretrained", run_dir=str(tmp_path / "run"), **options, **WITHOUT_REPORTS)
    assert pretrained(config).run().exit_code == 0


def test_a_wrong_translation_is_not_written(run_dir, tmp_path, monkeypatch):
    out_dir, step = tmp_path / "out", exporter.onnx_step
    off = lambda right: lambda obs, memory: jax.tree.map(lambda x: x + 1e-2, right(obs, memory))
    export(run_dir, f"export_dir={out_dir}")
    monkeypatch.setattr(exporter, "onnx_step", lambda data: off(step(data)))
    with pytest.raises(RunError, match=r"ONNX Runtime's actions differ .* by 1\.\de-02.* policy\.onnx is not\."):
        export(run_dir, f"export_dir={out_dir}")
    assert {path.name for path in out_dir.iterdir()} == FILES - {"policy.onnx"}


class Sorts(Memoryless):
    """A policy with an operation that ONNX's part of ksim does not know."""

    def __call__(self, obs, carry):
        mean = jnp.sort(obs["actor"])[:2]
        return ActorCriticOutput(Gaussian(mean, jnp.ones(2)), jnp.zeros(())), carry


def test_what_onnx_does_not_know_is_written_as_a_program_of_jax(run_dir, tmp_path, monkeypatch):
    sorts = lambda task: (*load_task_policy(task)[:2], NormalizedActorCritic(Sorts(), normalizer(task)))
    normalizer = lambda task: ObservationNormalizer.init(task.obs_sizes)
    monkeypatch.setattr(exporter, "load_task_policy", sorts)
    with pytest.raises(ConfigError, match=r"'sort'.*not covered.* policy\.jaxexport and policy\.json are in "):
        export(run_dir, f"export_dir={tmp_path}")
    program = jax.export.deserialize(bytearray((tmp_path / "policy.jaxexport").read_bytes()))
    action, _ = program.call({"obs": jnp.arange(7.0)[None, ::-1]}, {})
    np.testing.assert_allclose(action, [[0, 1]], atol=1e-6)
    assert not (tmp_path / "policy.onnx").exists()


@pytest.mark.long
def test_what_onnx_refuses_is_an_error_and_nothing_of_an_earlier_export_is_left(run_dir, tmp_path, monkeypatch):
    export(run_dir, f"export_dir={tmp_path}")
    refuse = Mock(side_effect=Exception("no kernel for this type"))
    monkeypatch.setattr(exporter, "onnx_step", refuse)
    words = r"ONNX cannot run the policy: no kernel for this type\. policy\.jaxexport and"
    with pytest.raises(ConfigError, match=words):
        export(run_dir, f"export_dir={tmp_path}")
    assert not (tmp_path / "policy.onnx").exists()


@pytest.mark.long
def test_the_precision_of_what_is_exported_is_float32s_whatever_the_runs_was(run_dir, tmp_path):
    export(run_dir, f"export_dir={tmp_path}", "matmul_precision=default")
    program = jax.export.deserialize(bytearray((tmp_path / "policy.jaxexport").read_bytes()))
    products = [line for line in program.mlir_module().splitlines() if "stablehlo.dot_general" in line]
    assert products
    assert all("precision = [HIGHEST, HIGHEST]" in line for line in products), products


def test_a_missing_package_is_an_error_that_says_what_to_install(run_dir, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match=r"needs onnx, which is not installed\. Run pip install 'ksim-rl\[export\]'"):
        export(run_dir)


@pytest.mark.parametrize("options", [{}, {"run_mode": "view", "checkpoint": "run"}])
def test_directory_of_exports_is_refused_where_nothing_is_exported(options):
    with pytest.raises(ConfigError, match=r"export_dir .* is written by run_mode=export"):
        point_mass_task(export_dir="there", **options)


def test_a_directory_that_cannot_be_written_is_an_error(run_dir, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be written to .*Set export_dir"):
        export(run_dir, f"export_dir={tmp_path / 'file'}")


def test_an_environment_of_the_users_own_is_exported_without_a_robot(tmp_path):
    save_run(point_mass_task(num_devices=1), tmp_path / "run")
    point_mass_task(run_mode="export", checkpoint=str(tmp_path / "run")).run()
    metadata = json.loads((tmp_path / "run/export/policy.json").read_text())
    assert metadata["observations"]["actor"]["input"] == "obs"
    assert "robot" not in metadata
