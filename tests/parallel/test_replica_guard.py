import dataclasses

import jax
import numpy as np
import pytest

from ksim import ConfigError
from ksim.parallel.layout import LAYOUTS
from ksim.parallel.replicas import ReplicasDivergedError
from ksim.preflight.devices import check_probe
from ksim.train import loop
from tests.support.checkpoints import newest, saved_learner
from tests.support.tasks import point_mass_task


def corrupt_after(iteration, device, monkeypatch):
    """Flips a bit of one device's copy of the first parameter, once."""
    iterate = loop.iterate

    def corrupted(leaf):
        rows = np.asarray(leaf).copy()
        rows[device].reshape(-1)[:1].view(np.uint32)[0] ^= 1
        return jax.device_put(rows, leaf.sharding)

    def iterate_and_corrupt(run, step):
        if run.progress.iteration == iteration:
            placed = run.state.get()
            leaves, structure = jax.tree.flatten(placed.learner.params)
            params = jax.tree.unflatten(structure, [corrupted(leaves[0]), *leaves[1:]])
            run.state.placed = dataclasses.replace(placed, learner=dataclasses.replace(placed.learner, params=params))
        iterate(run, step)

    monkeypatch.setattr(loop, "iterate", iterate_and_corrupt)


@pytest.mark.parametrize("layout", ["pmap", pytest.param("shard_map", marks=pytest.mark.long)])
def test_corrupted_replica_stops_the_run_and_names_leaf_device_and_process(layout, tmp_path, monkeypatch):
    corrupt_after(3, device=2, monkeypatch=monkeypatch)
    options = {"num_devices": 4, "max_iterations": 9, "replica_check_interval": 2, "layout": layout}
    task = point_mass_task(**options, run_dir=str(tmp_path / "run"))
    with pytest.raises(ReplicasDivergedError) as failed:
        task.run()
    message = str(failed.value)
    # Found at the next check; the corrupted leaf keeps its difference, which Adam's moments do not share.
    assert "copies of the learner differ after iteration 4" in message
    assert "replica 2 in .params" in message
    assert f"replica 2 is {jax.devices()[2]} of process 0" in message
    assert "on_divergence=rebroadcast" in message
    # Three copies of four agree: what they hold is worth keeping.
    assert newest(tmp_path / "run").name == "4"
    assert "copies of the learner differ" in (tmp_path / "run" / "process_0.log").read_text()


def test_what_is_saved_after_a_stop_is_what_most_replicas_hold(tmp_path, monkeypatch):
    # Not what replica 0 holds, from which learners are read otherwise.
    corrupt_after(1, device=0, monkeypatch=monkeypatch)
    task = point_mass_task(num_devices=4, max_iterations=9, replica_check_interval=2, run_dir=str(tmp_path / "run"))
    states = []
    check = loop.check_replicas
    monkeypatch.setattr(loop, "check_replicas", lambda run, i: (states.append(run.state.get()), check(run, i)))
    with pytest.raises(ReplicasDivergedError, match="replica 0 in"):
        task.run()
    saved = saved_learner(task, tmp_path / "run")
    held = [np.asarray(shard.data)[0] for shard in jax.tree.leaves(states[-1].learner.params)[0].addressable_shards]
    np.testing.assert_array_equal(jax.tree.leaves(saved.params)[0], held[1])
    assert (held[0] != held[1]).any()


def test_where_no_majority_knows_better_nothing_is_saved(tmp_path, monkeypatch):
    corrupt_after(1, device=1, monkeypatch=monkeypatch)
    task = point_mass_task(num_devices=2, max_iterations=9, replica_check_interval=1, run_dir=str(tmp_path / "run"))
    with pytest.raises(ReplicasDivergedError, match="after iteration 2"):
        task.run()
    assert newest(tmp_path / "run") is None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rebroadcast_goes_on_with_equal_replicas_and_says_so(layout, tmp_path, monkeypatch, capsys):
    corrupt_after(1, device=0, monkeypatch=monkeypatch)
    task = point_mass_task(
        num_devices=4,
        max_iterations=4,
        replica_check_interval=1,
        on_divergence="rebroadcast",
        layout=layout,
        run_dir=str(tmp_path / "run"),
    )
    assert task.run().exit_code == 0
    out = capsys.readouterr().out
    # Replica 0 is the one that logs and checkpoints are read from: it must be repaired too.
    assert out.count("Warning: The devices' copies of the learner differ") == 1
    assert "All continue with the copy of replica 1." in out
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("interval", "iterations"), [(None, []), (2, [2, 4]), (3, [3])], ids=["never", "every second", "every third"]
)
def test_replicas_are_checked_at_the_interval(interval, iterations, tmp_path, monkeypatch):
    from ksim.parallel.replicas import ReplicaGuard

    checked = []
    call = ReplicaGuard.__call__
    monkeypatch.setattr(
        ReplicaGuard, "__call__", lambda self, learner, i: (checked.append(i), call(self, learner, i))[1]
    )
    options = {"num_devices": 2, "max_iterations": 4, "replica_check_interval": interval}
    point_mass_task(**options, run_dir=str(tmp_path / "run")).run()
    assert checked == iterations


def test_devices_that_do_not_add_up_or_differ_are_an_error_before_training():
    check_probe(10, None, 4)
    with pytest.raises(ConfigError, match=r"A sum over the 4 devices gave 9 and not 10"):
        check_probe(9, None, 4)
    from ksim.parallel.replicas import Divergence

    with pytest.raises(ConfigError, match="differ right after they were made"):
        check_probe(3, Divergence((".params",), (1,), 0), 2)
