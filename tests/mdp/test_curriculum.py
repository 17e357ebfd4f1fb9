import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from ksim.mdp import commands
from ksim.mdp.curriculum import (
    CurriculumContext,
    EpisodeLengthCurriculum,
    ErrorCurriculum,
    LinearCurriculum,
    ScoreCurriculum,
)
from tests.support.contexts import make_context


def progress(iteration=1, **metrics):
    metrics = {name.replace("__", "/"): jnp.float32(x) for name, x in metrics.items()}
    return CurriculumContext(iteration=jnp.int32(iteration), metrics=metrics, ctrl_dt=0.02)


RISES = LinearCurriculum(start_iteration=100, end_iteration=200, start=0.2)
LENGTH = EpisodeLengthCurriculum(raise_above_s=10.0, lower_below_s=5.0, step=0.1)
SCORE = ScoreCurriculum(metric="reward/tracking", raise_above=1.6, lower_below=0.8, step=0.1)
ERROR = ErrorCurriculum(metric="error/velocity", raise_below=0.2, lower_above=0.5, step=0.1)
LEVELS = {
    "rises evenly between its iterations":
        (RISES, "iteration", [(0, 0.2), (100, 0.2), (150, 0.6), (200, 1.0), (300, 1.0)]),
    # 600, 400 and 200 steps of 0.02 s are 12, 8 and 4 s; in an iteration in which no episode ended there is no mean.
    "follows the mean length": (LENGTH, "episode__length", [(600, 0.6), (400, 0.5), (200, 0.4), (np.nan, 0.5)]),
    "rises with a high score": (SCORE, "reward__tracking", [(1.7, 0.6), (1.2, 0.5), (0.7, 0.4)]),
    "rises with a low error": (ERROR, "error__velocity", [(0.1, 0.6), (0.3, 0.5), (0.7, 0.4)]),
}  # fmt: skip


@pytest.mark.parametrize(("curriculum", "name", "values"), LEVELS.values(), ids=LEVELS)
def test_level_after_one_half(curriculum, name, values):
    for value, expected in values:
        level = curriculum(jnp.float32(0.5), progress(**{name: value}))
        np.testing.assert_allclose(level, expected, rtol=1e-6, err_msg=f"{name} {value}")


def test_progress_is_read_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        progress().iteration = jnp.array(3)  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(("level", "expected"), [(0.0, 0.2), (0.5, 0.6), (1.0, 1.0)])
def test_command_scaled_by_level_is_a_share_of_the_command(level, expected):
    inner = commands.VelocityCommand(
        forward=(1.0, 1.0), leftward=(0.0, 0.0), yaw_rate=(0.0, 0.0), standing_fraction=0.0
    )
    term = commands.ScaledByLevel(command=inner, level="hardness", start=0.2)
    context = make_context(levels={"hardness": jnp.float32(level)})
    command_3 = term(dataclasses.replace(context, memory=term.init(context)))
    np.testing.assert_allclose(command_3, [expected, 0, 0], rtol=1e-6)
    assert term.ranges() == inner.ranges()
