import types

import pytest

from ksim.train.loop import HOPELESS_ITERATIONS, check_episodes
from tests.support.tasks import point_mass_task

NAN = float("nan")
# Of 16 envs and 8 steps: 128 steps, of which 96 end an episode, after 128 / 96 = 1.33 steps on average.
FAILING = {
    "episode/count": 96.0, "episode/terminated_fraction": 1.0, "termination/time_limit": 0.0,
    "termination/base_tilted": 72 / 128, "termination/not_finite": 24 / 128,
}  # fmt: skip
EXPLODING = FAILING | {"termination/base_tilted": 0.0, "termination/not_finite": 96 / 128}
MASKED = {"episode/count": 0.0, "episode/terminated_fraction": NAN, "rollout/not_finite": 0.75}
# 25 episodes of 128 / 25 = 5.1 steps; the same number as FAILING, but none of them failed.
LONG_ENOUGH = FAILING | {"episode/count": 25.0}
TRUNCATED = FAILING | {"episode/terminated_fraction": 0.0, "termination/time_limit": 0.75}


@pytest.fixture
def run():
    return types.SimpleNamespace(task=point_mass_task(num_devices=1), num_hopeless=0)


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        (FAILING, r"after 1\.3 steps on average.* 75% of them end by termination/base_tilted\. Compare the limits"),
        (EXPLODING, r"after 1\.3 steps on average.* 100% of them end by termination/not_finite\. The simulation blows"),
        (MASKED, r"after 1\.3 steps on average.* 100% of them end by rollout/not_finite\. The simulation blows up"),
    ],
)
def test_episodes_that_fail_within_a_few_steps_for_ten_iterations_give_one_warning_with_the_cause(
    run, metrics, words, recwarn
):
    for _ in range(HOPELESS_ITERATIONS - 1):
        check_episodes(run, metrics)
    assert [str(w.message) for w in recwarn if "episodes" in str(w.message)] == []
    with pytest.warns(UserWarning, match=words):
        check_episodes(run, metrics)
    recwarn.clear()
    for _ in range(2 * HOPELESS_ITERATIONS):
        check_episodes(run, metrics)
    assert not recwarn


@pytest.mark.parametrize("metrics", [LONG_ENOUGH, TRUNCATED])
def test_episodes_that_last_or_are_truncated_give_no_warning(run, metrics, recwarn):
    recwarn.clear()
    for _ in range(2 * HOPELESS_ITERATIONS):
        check_episodes(run, metrics)
        check_episodes(run, FAILING)
    assert not recwarn
