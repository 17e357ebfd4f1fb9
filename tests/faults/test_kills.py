"""SIGKILL at random moments: what is resumed is what an uninterrupted run does, and little is lost."""

import random
import signal

import pytest

from ksim.checkpoint.format import list_checkpoints, read_checkpoint
from ksim.log.jsonl import read_metrics
from tests.support.damaged_runs import assert_same_metrics, read_lines, train, train_here
from tests.support.scale import only_in_full, scale

pytestmark = pytest.mark.long

INTERVAL = 3
OPTIONS = (f"save_every_n_iterations={INTERVAL}", "eval_every_n_iterations=5", "max_to_keep=2")
NUM_KILLS = scale(4, 50)
# Per kill about so many iterations are done before it.
NUM_ITERATIONS = 5 * NUM_KILLS


def random_moment(rng):
    kind = rng.choice(["rollout", "save", "evaluation"])
    count = {"rollout": rng.randint(1, 8), "save": rng.randint(1, 2), "evaluation": 1}[kind]
    longest_s = {"rollout": 0.02, "save": 0.3, "evaluation": 0.1}[kind]
    return f"{kind}:{count}:{rng.uniform(0, longest_s):.4f}"


def newest_iteration(run_dir):
    return max((int(path.name) for path in list_checkpoints(run_dir / "checkpoints")), default=0)


def test_run_killed_again_and_again_is_the_run_that_nobody_killed(tmp_path):
    options = (*OPTIONS, f"max_iterations={NUM_ITERATIONS}")
    train_here(*options, "run_dir=whole")
    rng, num_killed, run_dir = random.Random(0), 0, tmp_path / "killed"
    while num_killed < NUM_KILLS:
        code, output = train(random_moment(rng), *options, "run_dir=killed", "resume=auto", cwd=tmp_path)
        if code == 0:  # it was done before the moment came
            break
        assert code == -signal.SIGKILL, output
        num_killed += 1
        assert "damaged" not in output
        done = [line["iteration"] for line in read_metrics(run_dir)]
        # One checkpoint may be under way while the next iterations are done.
        assert newest_iteration(run_dir) >= max(done, default=0) - 2 * INTERVAL
        for path in list_checkpoints(run_dir / "checkpoints"):
            assert read_checkpoint(path).iteration == int(path.name)
    train_here(*options, "run_dir=killed", "resume=auto")
    assert_same_metrics(run_dir, tmp_path / "whole", 1e-6)
    evaluated = lambda name: [line["iteration"] for line in read_lines(tmp_path / name / "evaluations.jsonl")]
    assert evaluated("killed") == evaluated("whole")


@only_in_full("four trainings one after the other")
def test_run_goes_on_alike_on_other_numbers_of_devices_and_in_another_layout(tmp_path):
    task = "cart_pole"
    options = ("save_every_n_iterations=1", "eval_at_end=false")
    train("never", *options, "max_iterations=6", "run_dir=whole", cwd=tmp_path, task=task)
    for num_devices, layout, until in ((1, "pmap", 2), (4, "pmap", 4), (2, "shard_map", 6)):
        arguments = (*options, f"max_iterations={until}", "run_dir=moved", "resume=auto", f"num_devices={num_devices}")
        arguments += (f"layout={layout}",)
        code, output = train("never", *arguments, cwd=tmp_path, task=task, num_devices=num_devices)
        assert code == 0, output
    assert_same_metrics(tmp_path / "moved", tmp_path / "whole", 1e-5)


@only_in_full("restarts change the number of processes as well")
def test_run_of_one_process_goes_on_alike_in_two(tmp_path):
    options = ("save_every_n_iterations=1", "eval_at_end=false", "num_devices=1")
    train_here(*options, "max_iterations=6", "run_dir=whole")
    # The second time two find that it is done already.
    for num_processes, until in ((1, 2), (2, 4), (2, 4), (1, 6)):
        arguments = (*options, f"max_iterations={until}", "run_dir=moved", "resume=auto")
        if num_processes == 1:
            train_here(*arguments)
        else:
            code, output = train("never", *arguments, cwd=tmp_path, num_processes=num_processes)
            assert code == 0, output
    assert_same_metrics(tmp_path / "moved", tmp_path / "whole", 1e-5)
