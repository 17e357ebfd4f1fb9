r"""A policy that rsl_rl or Brax trained, as a checkpoint of a task of ksim, to evaluate, view and export it.

python -m ksim.tools.import_policy my_task model_1500.pt --out imported
python -m ksim.tools.import_policy my_task model_1500.pt --out imported \
  --order base_ang_vel projected_gravity velocity_commands joint_pos joint_vel actions --joints FL_hip FL_thigh ...
python my_task.py run_mode=eval checkpoint=imported actor_sizes=[512,256,128]

The weights are those of an MLP: a checkpoint of rsl_rl (`.pt`, which mjlab and Isaac Lab write too), or parameters that
`brax.io.model.save_params` wrote. Their sizes and activation are options of the task: where they differ, an error says
which to set. Files do not name their activation: give it if it is not the default there, elu of rsl_rl or silu of Brax.
The policy's value function is not imported, so training cannot go on from it.

A policy reads numbers in the order of its own observations. --order names them as there (names of Isaac Lab and mjlab
are known, others must be ksim's), and the columns of the weights are brought into the order of the task. --joints names
the joints in the order there, for actions and for observations of all or some of the joints. Without them the order
must be the task's, which is printed.

Files are read without running code that they hold.
"""

import io
import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from ksim.checkpoint.format import Checkpoint
from ksim.checkpoint.progress import Progress
from ksim.checkpoint.snapshot import named_arrays, run_document, write_policy_alone
from ksim.errors import ConfigError
from ksim.host.terminal import print_line, print_table
from ksim.learn.learner import trainable_leaves
from ksim.mdp import observations as obs
from ksim.nn.networks import MlpActorCritic
from ksim.nn.normalizer import ObservationNormalizer
from ksim.physics.names import ModelNames
from ksim.policy.load import program_arrays, task_on_one_device
from ksim.rollout.mdp_environment import MdpEnvironment
from ksim.task.overrides import parse_overrides
from ksim.task.rl import RLTask
from ksim.tools import exit_code_of, make_parser
from ksim.tools.scaling import find_task
from ksim.types import LearnerState

NAMES: dict[str, tuple[type[Any], ...]] = {
    "base_lin_vel": (obs.BaseLinearVelocity,),
    "base_ang_vel": (obs.BaseAngularVelocity, obs.ImuGyro, obs.SensorReading),
    "projected_gravity": (obs.ProjectedGravity,),
    "velocity_commands": (obs.CommandValue,),
    "command": (obs.CommandValue,),
    "joint_pos": (obs.JointPosition,),
    "joint_pos_rel": (obs.JointPosition,),
    "joint_vel": (obs.JointVelocity,),
    "joint_vel_rel": (obs.JointVelocity,),
    "actions": (obs.LastAction,),
    "last_action": (obs.LastAction,),
    "height_scan": (obs.HeightScan,),
}
"""Observations of Isaac Lab and mjlab by name, and the terms that are the same."""
OF_ACTUATORS = (obs.LastAction, obs.PreviousAction, obs.ActionHistory, obs.ActuatorForce, obs.ActuatorControl)
"""Observations with a number for each actuator."""


@dataclass(frozen=True)
class Weights:
    """An MLP from observations to the mean of an action.

    Attributes:
        layers: Weights, (out, in), and biases, from the first layer to the mean.
        activation: Default activation of the program that trained it, by its name in ksim; files do not name theirs.
        squash: Whether tanh follows.
        mean, variance: Statistics of the observations; None if they are not normalised.
    """

    layers: tuple[tuple[np.ndarray, np.ndarray], ...]
    activation: str
    squash: bool
    mean: np.ndarray | None = None
    variance: np.ndarray | None = None

    @property
    def hidden_sizes(self) -> list[int]:
        """Sizes of the hidden layers."""
        return [len(bias) for _, bias in self.layers[:-1]]

    @property
    def obs_size(self) -> int:
        """Length of the observation."""
        return self.layers[0][0].shape[1]

    @property
    def action_size(self) -> int:
        """Length of the action."""
        return len(self.layers[-1][1])


class _Record:
    """Stands in for a class of another package in a file: its fields, without its code."""

    def __init__(self, *_: Any) -> None: ...

    def __setstate__(self, state: Any) -> None:
        vars(self).update(state if isinstance(state, dict) else {"state": state})


class _Unpickler(pickle.Unpickler):
    """Reads arrays and plain containers. Anything else in a file is an error, or a record without code."""

    def __init__(self, file: Any, storages: Mapping[str, bytes] | None = None) -> None:
        super().__init__(file)
        self._storages = storages or {}

    def find_class(self, module: str, name: str) -> Any:
        known = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _tensor,
            ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
            ("jax._src.array", "_reconstruct_array"): _jax_array,
            ("builtins", "slice"): slice,
        }
        if (module, name) in known:
            return known[module, name]
        if module == "torch" and name.endswith("Storage"):
            return name
        if module.partition(".")[0] == "numpy" and name in ("_reconstruct", "ndarray", "dtype", "scalar"):
            return super().find_class(module, name)
        if module.partition(".")[0] in ("brax", "flax", "torch", "jax"):
            return type(name, (_Record,), {})
        raise ConfigError(f"The file holds {module}.{name}, which is no array. It is not read.")

    def persistent_load(self, pid: Any) -> Any:
        """A storage of PyTorch: ("storage", its type, its key, where it was, its length)."""
        _, kind, key, *_ = pid
        dtypes = {"FloatStorage": "<f4", "DoubleStorage": "<f8", "LongStorage": "<i8", "IntStorage": "<i4"}
        if kind not in dtypes or key not in self._storages:
            return None
        return np.frombuffer(self._storages[key], dtypes[kind])


def _tensor(storage: np.ndarray | None, offset: int, size: Sequence[int], stride: Sequence[int], *_: Any) -> Any:
    if storage is None:  # of another type, such as of a random generator
        return None
    flat = storage[offset:]
    return np.lib.stride_tricks.as_strided(flat, size, [x * flat.itemsize for x in stride]).copy()


def _jax_array(function: Any, arguments: Any, state: Any, *_: Any) -> np.ndarray:
    array = function(*arguments)
    array.__setstate__(state)
    return array


def read_weights(path: Path) -> Weights:
    """The policy in a file of rsl_rl or Brax.

    Raises:
        ConfigError: The file cannot be read, or holds no policy of an MLP.
    """
    try:
        if zipfile.is_zipfile(path):
            return _of_rsl_rl(_read_torch(path))
        return _of_brax(_Unpickler(io.BytesIO(path.read_bytes())).load())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise ConfigError(
            f"{path} is neither a checkpoint of rsl_rl nor parameters of Brax for an MLP: {error or 'it ends'}."
        ) from error


def _read_torch(path: Path) -> Any:
    """The content of a file of `torch.save`."""
    with zipfile.ZipFile(path) as archive:
        (content,) = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        folder = content.removesuffix("data.pkl") + "data/"
        storages = {name.removeprefix(folder): archive.read(name) for name in archive.namelist() if folder in name}
        return _Unpickler(io.BytesIO(archive.read(content)), storages).load()


def _of_rsl_rl(content: Mapping[str, Any]) -> Weights:
    state = content.get("model_state_dict", content.get("actor_state_dict", content))
    named = {name.removeprefix("actor.").removeprefix("mlp."): x for name, x in state.items()}
    numbers = sorted(int(name.removesuffix(".weight")) for name in named if re.fullmatch(r"\d+\.weight", name))
    if not numbers:
        raise ValueError("it has no weights actor.0.weight, actor.2.weight and so on")
    if any(re.match(r"(rnn|memory_a|cnns?)\.", name) for name in state):
        raise ValueError("it has a memory or convolutions")
    layers = tuple((named[f"{i}.weight"], named[f"{i}.bias"]) for i in numbers)
    # The normaliser of observations is beside the model up to version 2, and in it since.
    norm = content.get("obs_norm_state_dict") or {
        found[1]: x for name, x in state.items() if (found := re.fullmatch(r"(?:actor_)?obs_normalizer\.(\w+)", name))
    }
    mean, std = norm.get("_mean"), norm.get("_std")
    # rsl_rl divides by its standard deviation plus 0.01.
    variance = None if std is None else np.square(np.ravel(std) + 1e-2)
    return Weights(layers, "elu", False, None if mean is None else np.ravel(mean), variance)


def _of_brax(content: Any) -> Weights:
    normalizer, policy, *_ = content
    tree = _plain(policy)["params"]
    if any(not name.startswith("hidden_") for name in tree):
        raise ValueError("it has layers that are not dense")
    names = sorted(tree, key=lambda name: int(name[len("hidden_") :]))
    layers = [(np.asarray(tree[name]["kernel"]).T, np.asarray(tree[name]["bias"])) for name in names]
    weight, bias = layers[-1]
    half = len(bias) // 2  # the other half are standard deviations
    layers[-1] = (weight[:half], bias[:half])
    mean, std = (_plain(getattr(normalizer, name, None)) for name in ("mean", "std"))
    mean, std = (x.get("state") if isinstance(x, dict) else x for x in (mean, std))
    variance = None if std is None else np.square(std)
    return Weights(tuple(layers), "silu", True, mean, variance)


def _plain(tree: Any) -> Any:
    """A tree of dicts from one with records of Flax."""
    if isinstance(tree, _Record):
        return _plain(vars(tree).get("_dict", vars(tree)))
    return {name: _plain(x) for name, x in tree.items()} if isinstance(tree, Mapping) else tree


@dataclass(frozen=True)
class Slot:
    """An observation term in the policy's observation: its name, and its columns.

    Attributes:
        joints: The joints of the last axis of its numbers, in order; empty if these are not of joints.
    """

    name: str
    term: Any
    start: int
    size: int
    joints: tuple[str, ...] = ()


def slots_of(task: RLTask[Any]) -> list[Slot]:
    """The terms of the group `actor`, in their order."""
    env = task.environment
    if not isinstance(env, MdpEnvironment):
        raise ConfigError(f"{type(env).__name__} is not made of terms. Leave out --order and --joints.")
    terms, columns = env.mdp.observations["actor"], env.columns("actor", env.shapes(task.device_axis))
    names = env.engine.model.names
    return [
        Slot(name, terms[name], place.start, place.stop - place.start, joints_of(terms[name], names))
        for name, place in columns.items()
    ]


def joints_of(term: Any, names: ModelNames) -> tuple[str, ...]:
    """The joints of a term's numbers, in their order; empty if these are not of joints."""
    while hasattr(term, "observation"):  # within a history, a delay or a filter
        term = term.observation
    if isinstance(term, OF_ACTUATORS):
        joints = [names.actuator_joint(i) for i in range(len(names.actuators))]
        return () if None in joints else tuple(name for name in joints if name is not None)
    joints = getattr(term, "joints", ())
    return tuple(names.joints if joints is None else joints)


def column_order(slots: Sequence[Slot], order: Sequence[str], joints: Sequence[str], own: Sequence[str]) -> np.ndarray:
    """For each column of the task's observation, the column there.

    Args:
        order: Names of observations there; empty: those of the task.
        joints: Names of joints there; empty: in the task's order.
        own: The names of all joints of the task.

    Raises:
        ConfigError: A name is unknown, or an observation is missing on one side.
    """
    left, start, found = list(slots), 0, {}
    for name in order or [slot.name for slot in slots]:
        matches = [s for s in left if s.name == name or isinstance(s.term, NAMES.get(name, ()))]
        if not matches:
            raise ConfigError(
                f"--order has {name!r}, but no observation of the task is left for it. They are "
                f"{', '.join(slot.name for slot in slots)}."
            )
        slot = matches[0]
        left.remove(slot)
        found[slot.name] = start + _within(slot, joints, own)
        start += slot.size
    if left:
        raise ConfigError(
            f"--order lacks {', '.join(slot.name for slot in left)}, which the task observes. A policy that did not "
            "see them needs a task without them."
        )
    return np.concatenate([found[slot.name] for slot in slots])


def _within(slot: Slot, joints: Sequence[str], own: Sequence[str]) -> np.ndarray:
    """The order of a term's numbers there."""
    if not joints or not slot.joints:
        return np.arange(slot.size)
    if slot.size % len(slot.joints):
        raise ConfigError(
            f"--joints cannot order {slot.name}, which has {slot.size} numbers of {len(slot.joints)} joints. Leave it "
            "out, and give the task the policy's order."
        )
    rows = np.arange(slot.size).reshape(-1, len(slot.joints))
    return rows[:, joint_order(joints, slot.joints, own)].ravel()


def joint_order(joints: Sequence[str], picked: Sequence[str], own: Sequence[str]) -> np.ndarray:
    """For each of some joints, its place among them in the order there.

    Raises:
        ConfigError: `joints` lacks one of them, or has others than the task's, `own`.
    """
    order = [name for name in joints if name in picked]
    if sorted(order) != sorted(picked) or not set(joints) <= set(own):
        raise ConfigError(f"--joints must be the task's joints in another order, {' '.join(own)}.")
    return np.array([order.index(name) for name in picked])


def action_order(joints: Sequence[str], names: ModelNames, size: int) -> np.ndarray:
    """For each number of the task's action, its place there.

    Raises:
        ConfigError: With `joints`, an action has other than one number for each actuator of a joint.
    """
    if not joints:
        return np.arange(size)
    driven = names.actuator_joints()
    if len(driven) != size:
        raise ConfigError(
            f"--joints cannot order actions of {size} numbers for {len(driven)} actuators. Leave it out, and give the "
            "task the policy's order."
        )
    return joint_order(joints, driven, list(names.joints))


def imported_learner(learner: LearnerState, network: MlpActorCritic, weights: Weights) -> LearnerState:
    """A learner with the policy's weights and statistics; the value function stays as it was."""
    layers = [eqx.tree_at(lambda x: (x.weight, x.bias), old, tuple(map(jnp.float32, new))) for old, new in
              zip(network.actor.layers, weights.layers[:-1], strict=True)]  # fmt: skip
    weight, bias = (jnp.asarray(x, jnp.float32) for x in weights.layers[-1])
    missing = network.head.linear.weight.shape[0] - len(bias)  # outputs for standard deviations
    weight, bias = jnp.pad(weight, ((0, missing), (0, 0))), jnp.pad(bias, (0, missing))
    network = eqx.tree_at(
        lambda n: (n.actor.layers, n.head.linear.weight, n.head.linear.bias), network, (tuple(layers), weight, bias)
    )
    normalizer: ObservationNormalizer = learner.normalizer
    if weights.mean is not None and weights.variance is not None:
        normalizer = replace(
            normalizer,
            count=jnp.zeros(()),  # nothing is clipped, as there
            mean=normalizer.mean | {"actor": jnp.asarray(weights.mean, jnp.float32)},
            variance=normalizer.variance | {"actor": jnp.asarray(weights.variance, jnp.float32)},
        )
    return replace(learner, params=trainable_leaves(network), normalizer=normalizer)


def reordered(weights: Weights, columns: np.ndarray, rows: np.ndarray) -> Weights:
    """Weights whose inputs are in the order of some columns, and whose outputs in that of some rows."""
    (first, bias), *middle, (last, last_bias) = weights.layers
    layers = ((first[:, columns], bias), *middle, (last[rows], last_bias[rows]))
    pick = lambda x: None if x is None else x[columns]
    return replace(weights, layers=layers, mean=pick(weights.mean), variance=pick(weights.variance))


def check_fits(task: RLTask[Any], weights: Weights, path: Path, *, has_activation: bool) -> None:
    """Raises ConfigError unless the task's policy is of the shape of the weights.

    `has_activation`: whether the user gave the activation, which may be another than the default there.
    """
    config: Any = task.config
    wanted = {"model": "mlp", "actor_sizes": weights.hidden_sizes, "activation": weights.activation}
    wanted |= {"squash": weights.squash, "normalize_observations": weights.mean is not None}
    if has_activation:
        del wanted["activation"]
    differing = {name: value for name, value in wanted.items() if getattr(config, name) != value}
    if differing:
        settings = " ".join(f"{name}={_written(value)}" for name, value in differing.items())
        note = f" The file does not name its activation; {weights.activation} is the default there."
        raise ConfigError(
            f"The policy in {path} differs from the task's. Give {settings}, here and to evaluate it."
            + (note if "activation" in differing else "")
        )
    sizes = (task.obs_sizes["actor"], task.environment.action_size)
    if sizes != (weights.obs_size, weights.action_size):
        raise ConfigError(
            f"The policy in {path} maps {weights.obs_size} observations to {weights.action_size} actions, and the "
            f"task's {sizes[0]} to {sizes[1]}. Give the task the observations and joints of the policy."
        )


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value).replace(" ", "")


def import_policy(
    task: RLTask[Any],
    path: Path,
    out: Path,
    *,
    order: Sequence[str] = (),
    joints: Sequence[str] = (),
    has_activation: bool = False,
) -> Path:
    """Writes the policy of a file as a checkpoint of a task, in the directory `out`; returns its path.

    `order` and `joints` are as in `column_order`, `has_activation` as in `check_fits`.

    Raises:
        ConfigError: The file cannot be read, or its policy does not fit the task.
    """
    weights = read_weights(path)
    task = task_on_one_device(task)
    check_fits(task, weights, path, has_activation=has_activation)
    if isinstance(task.environment, MdpEnvironment):
        slots, names = slots_of(task), task.environment.engine.model.names
        rows = [
            (slot.name, f"{slot.start} to {slot.start + slot.size - 1}", type(slot.term).__name__) for slot in slots
        ]
        print_table("Observations of the task, in their order", ("name", "numbers", "term"), rows)
        columns = column_order(slots, order, joints, list(names.joints))
        weights = reordered(weights, columns, action_order(joints, names, weights.action_size))
    learner, network = task.initial_learner()
    assert isinstance(network, MlpActorCritic)
    learner = imported_learner(learner, network, weights)
    arrays = {f"learner.{name}": x for name, x in named_arrays(learner).items()}
    progress = Progress(0, None, None, iteration=1).record()
    document = run_document(task, iteration=1, progress=progress, last_episodes={}, imported_from=str(path))
    programs = program_arrays(task.policy_of(learner), task.obs_sizes)
    return write_policy_alone(Checkpoint(out / "none", arrays, document), out, programs)


@exit_code_of
def main(argv: Sequence[str] | None = None) -> None:
    """Imports the policy that the command line names."""
    parser = make_parser("import_policy", __doc__)
    parser.add_argument("module", help="module of the task, as in `python -m MODULE`")
    parser.add_argument("weights", type=Path, help="checkpoint of rsl_rl (.pt), or parameters of Brax")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="options of the task")
    parser.add_argument("--task", help="class of the task, if the module has several")
    parser.add_argument("--out", type=Path, required=True, help="directory of the checkpoint")
    parser.add_argument("--order", nargs="*", default=[], metavar="NAME", help="observations in the order there")
    parser.add_argument("--joints", nargs="*", default=[], metavar="NAME", help="joints in the order there")
    options = parser.parse_intermixed_args(argv)
    task_class = find_task(options.module, options.task)
    task = task_class(parse_overrides(task_class.get_config_class()(), options.overrides))
    orders = {"order": options.order, "joints": options.joints}
    has_activation = any(override.startswith("activation=") for override in options.overrides)
    path = import_policy(task, options.weights, options.out, has_activation=has_activation, **orders)
    print_line(f"Wrote {path}. Evaluate it: run_mode=eval checkpoint={options.out}")


if __name__ == "__main__":
    raise SystemExit(main())
