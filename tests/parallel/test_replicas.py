import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ksim import ConfigError
from ksim.parallel.layout import LAYOUTS, PmapDevices
from ksim.parallel.placement import replicate_state, unwrap_keys, wrap_keys
from ksim.parallel.replicas import (
    Divergence,
    ReplicaGuard,
    ReplicasDivergedError,
    checksums,
    copy_from_replica,
    find_divergence,
    gather_checksums,
    leaf_names,
)
from ksim.preflight.devices import check_probe
from ksim.train import loop
from tests.support.checkpoints import newest, saved_learner
from tests.support.tasks import point_mass_task

AXIS = "replica"
DTYPES = [np.dtype(x) for x in ("float32", "float16", jnp.bfloat16, "int8", "uint16", "int32", "bool", "complex64")]


def make_tree():
    key = jax.random.key(7)
    return {
        "weight": jnp.linspace(-1.0, 1.0, 12).reshape(3, 4),
        "half": jnp.arange(5, dtype=jnp.float16) / 3,
        "brain": jnp.arange(5, dtype=jnp.bfloat16) / 3,
        "bytes": jnp.arange(-3, 3, dtype=jnp.int8),
        "count": jnp.int32(3),
        "flags": jnp.array([True, False, True]),
        "keys": jax.random.split(key, 3),
        "none": jnp.zeros((0, 4)),
        "complex": jnp.array([1 + 2j, -0.0j], jnp.complex64),
        "odd": jnp.array([0.0, -0.0, jnp.nan, jnp.inf]),
    }


def place(replicas):
    """One tree per device, given on the host, as pmap takes them."""
    devices = jax.devices()[: len(replicas)]
    placed = replicate_state(replicas[0], devices, AXIS)
    sharding = jax.tree.leaves(unwrap_keys(placed))[0].sharding
    stacked = jax.tree.map(lambda *x: jax.device_put(jnp.stack(x), sharding), *replicas)
    return stacked, devices


def gathered(replicas):
    """The checksums that every device gathers: shape (devices, devices, leaves)."""
    placed, devices = place(replicas)
    return np.asarray(PmapDevices(devices, AXIS).map(lambda x: gather_checksums(x, AXIS))(placed))


def copied_from(source, replicas):
    """The replicas on the host after each got the leaves of `source`, checked against it bit for bit."""
    placed, devices = place(replicas)
    layout = PmapDevices(devices, AXIS)
    function = layout.map(lambda x, s: copy_from_replica(x, s, AXIS))
    after = function(placed, layout.replicate(jnp.int32(source)))
    # Not x[i], which sums over devices as floats and makes 0.0 of -0.0.
    host = jax.tree.map(np.asarray, unwrap_keys(after))
    apart = [wrap_keys(jax.tree.map(lambda x, i=i: x[i], host), replicas[0]) for i in range(len(replicas))]
    for replica in apart:
        assert bits_of(replica) == bits_of(replicas[source])
        assert [x.dtype for x in jax.tree.leaves(replica)] == [x.dtype for x in jax.tree.leaves(replicas[source])]
    return apart


def with_bit_flipped(x, place, bit):
    """The array with one bit of one element changed."""
    raw = np.array(x)
    words = raw.reshape(-1).view(f"u{raw.dtype.itemsize}")
    words[place] ^= np.array(1 << bit, words.dtype)
    return jnp.asarray(raw)


def other_nan(x):
    return jnp.asarray(np.array([0.0, -0.0, np.uint32(0x7FC00001).view(np.float32), np.inf], np.float32))


CORRUPTIONS = {
    "weight": lambda x: with_bit_flipped(x, 7, 0),
    "half": lambda x: with_bit_flipped(x, 4, 15),
    "brain": lambda x: with_bit_flipped(x, 0, 3),
    "bytes": lambda x: x.at[jnp.array([0, 5])].set(x[jnp.array([5, 0])]),
    "count": lambda x: x + 1,
    "flags": lambda x: x[::-1].at[0].set(False),
    "keys": lambda x: x.at[1].set(jax.random.key(99)),
    "complex": lambda x: x.conj(),
    "odd": lambda x: x.at[0].set(-0.0),
}


def bits_of(tree):
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(unwrap_keys(tree))]


def corrupted(name, corruption):
    tree = make_tree()
    changed = tree | {name: corruption(tree[name])}
    assert bits_of(changed) != bits_of(tree)
    return tree, changed


@pytest.mark.parametrize("num_devices", [2, 4])
def test_replicas_that_are_the_same_have_the_same_checksums_everywhere(num_devices):
    gathered_ddl = gathered([make_tree()] * num_devices)
    np.testing.assert_array_equal(gathered_ddl, np.broadcast_to(checksums(make_tree()), gathered_ddl.shape))
    assert find_divergence(gathered_ddl[0], leaf_names(make_tree())) is None


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_one_corrupted_leaf_of_one_replica_of_four_is_found_and_restored_bit_for_bit(name):
    good, bad = corrupted(name, CORRUPTIONS[name])
    replicas = [good, good, bad, good]
    gathered_ddl = gathered(replicas)
    for seen_dl in gathered_ddl:
        found = find_divergence(seen_dl, leaf_names(good))
        assert found == Divergence(leaves=(f"['{name}']",), replicas=(2,), source=0)
    assert find_divergence(gathered(copied_from(0, replicas))[0], leaf_names(good)) is None


@pytest.mark.parametrize(
    "corruption", [lambda x: x.at[0].set(x[1]).at[1].set(x[0]), other_nan], ids=["-0.0 and 0.0 swapped", "NaN's bits"]
)
def test_two_replicas_that_differ_in_what_compares_as_equal_are_found(corruption):
    good, bad = corrupted("odd", corruption)
    found = find_divergence(gathered([bad, good])[0], leaf_names(good))
    # Of two that differ, the first is taken to be right.
    assert found == Divergence(leaves=("['odd']",), replicas=(1,), source=0)
    copied_from(1, [bad, good])


def test_copy_gives_every_device_the_leaves_of_the_one_that_is_named():
    replicas = [{"x": jnp.full(3, float(i)), "key": jax.random.key(i)} for i in range(4)]
    copied_from(2, replicas)
    assert copy_from_replica(replicas[0], jnp.int32(0), None) is replicas[0]


def test_float64_leaves_are_checked_and_copied():
    with jax.enable_x64(True):
        good = {"x": jnp.array([1.0, -0.0, jnp.nan], jnp.float64), "n": jnp.array([2**40], jnp.int64)}
        bad = good | {"x": with_bit_flipped(good["x"], 1, 63)}
        assert good["x"].dtype == jnp.float64
        assert find_divergence(gathered([good, bad])[0], leaf_names(good)) == Divergence(("['x']",), (1,), 0)
        copied_from(1, [good, bad])


def test_a_swap_of_opposite_numbers_and_of_far_neighbours_changes_the_checksum():
    # Opposite numbers differ in their highest bit alone, which weights that are multiples of 2 apart would lose.
    x = jnp.array([1.0, 5.0, -1.0, 5.0])
    assert checksums([x])[0] != checksums([x.at[0].set(-1.0).at[2].set(1.0)])[0]
    x = jnp.arange(50.0)
    sums = {
        int(checksums([x.at[i].set(x[j]).at[j].set(x[i])])[0]) for i, j in itertools.combinations(range(0, 50, 7), 2)
    }
    assert len(sums) == 28
    assert int(checksums([x])[0]) not in sums


def test_majority_is_of_each_leaf_and_the_source_agrees_in_all_leaves():
    names = ["a", "b"]
    divergence = lambda *rows: find_divergence(np.array(rows, np.uint32), names)
    assert divergence([1, 2], [1, 2]) is None
    assert divergence([0, 2], [1, 2], [1, 2]) == Divergence(("a",), (0,), source=1)
    assert divergence([1, 2], [1, 2], [3, 4], [3, 4]) == Divergence(("a", "b"), (2, 3), source=0)
    # No two agree in all: replica 1 deviates from most in no leaf.
    assert divergence([0, 2], [1, 2], [1, 3]) == Divergence(("a", "b"), (0, 2), source=1)
    assert str(divergence([0, 2], [1, 2], [1, 3])) == "replicas 0, 2 in a, b"


def test_names_that_do_not_fit_the_leaves_are_an_error():
    with pytest.raises(ValueError, match=r"Number of names \(1\) must equal number of leaves \(2\)"):
        find_divergence(np.zeros((2, 2), np.uint32), ["a"])


def test_tree_without_leaves_or_device_axis_is_checked_too():
    assert checksums({}).shape == (0,)
    assert gather_checksums({}, None).shape == (1, 0)
    assert find_divergence(np.zeros((2, 0), np.uint32), []) is None


@st.composite
def trees_and_bits(draw):
    """A tree of arrays with random bits, and the place of one bit in it: (leaf, element, bit)."""
    leaves = []
    for _ in range(draw(st.integers(1, 4))):
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
        dtype = draw(st.sampled_from(DTYPES))
        num_bytes = int(np.prod(shape)) * dtype.itemsize
        raw = np.frombuffer(draw(st.binary(min_size=num_bytes, max_size=num_bytes)), np.uint8)
        leaves.append((raw & 1 if dtype.kind == "b" else raw).view(dtype).reshape(shape))
    sized = [i for i, leaf in enumerate(leaves) if leaf.size]
    if not sized:
        leaves, sized = [*leaves, np.zeros((), np.float32)], [len(leaves)]
    leaf = draw(st.sampled_from(sized))
    bits = 1 if leaves[leaf].dtype.kind == "b" else 8
    place = draw(st.integers(0, leaves[leaf].nbytes - 1))
    return leaves, leaf, place, draw(st.integers(0, bits - 1))


@pytest.mark.long
@settings(max_examples=60, deadline=None, database=None)
@given(trees_and_bits())
def test_any_flipped_bit_of_any_tree_is_detected_in_its_leaf(tree_and_bit):
    leaves, leaf, place, bit = tree_and_bit
    raw = np.array(leaves[leaf])
    raw.reshape(-1).view(np.uint8)[place] ^= np.uint8(1 << bit)
    changed = [raw if i == leaf else x for i, x in enumerate(leaves)]
    before, after = (np.asarray(checksums([jnp.asarray(x) for x in tree])) for tree in (leaves, changed))
    assert find_divergence(np.stack([before, after]), leaf_names(leaves)) == Divergence((f"[{leaf}]",), (1,), 0)


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
    checked, call = [], ReplicaGuard.__call__
    note = lambda self, learner, i: (checked.append(i), call(self, learner, i))[1]
    monkeypatch.setattr(ReplicaGuard, "__call__", note)
    options = {"num_devices": 4, "max_iterations": 9, "replica_check_interval": 2, "layout": layout}
    task = point_mass_task(**options, run_dir=str(tmp_path / "run"))
    with pytest.raises(ReplicasDivergedError) as failed:
        task.run()
    assert checked == [2, 4]
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


@pytest.mark.long
def test_where_no_majority_knows_better_nothing_is_saved(tmp_path, monkeypatch):
    corrupt_after(1, device=1, monkeypatch=monkeypatch)
    task = point_mass_task(num_devices=2, max_iterations=9, replica_check_interval=1, run_dir=str(tmp_path / "run"))
    with pytest.raises(ReplicasDivergedError, match="after iteration 2"):
        task.run()
    assert newest(tmp_path / "run") is None


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rebroadcast_goes_on_with_equal_replicas_and_says_so(layout, tmp_path, monkeypatch, capsys):
    corrupt_after(1, device=0, monkeypatch=monkeypatch)
    options = {"num_devices": 4, "max_iterations": 4, "replica_check_interval": 1, "layout": layout}
    task = point_mass_task(**options, on_divergence="rebroadcast", run_dir=str(tmp_path / "run"))
    assert task.run().exit_code == 0
    out = capsys.readouterr().out
    # Replica 0 is the one that logs and checkpoints are read from: it must be repaired too.
    assert out.count("Warning: The devices' copies of the learner differ") == 1
    assert "All continue with the copy of replica 1." in out
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 4


@pytest.mark.parametrize(("interval", "iterations"), [(None, []), (2, [2, 4]), (3, [3])])
def test_replicas_are_due_at_the_interval(interval, iterations):
    task = point_mass_task(num_devices=2)
    guard = ReplicaGuard(task.layout, task.initial_learner().state, interval=interval, rebroadcasts=False)
    assert [i for i in range(1, 5) if guard.is_due(i)] == iterations


def test_devices_that_do_not_add_up_or_differ_are_an_error_before_training():
    check_probe(10, None, 4)
    with pytest.raises(ConfigError, match=r"A sum over the 4 devices gave 9 and not 10"):
        check_probe(9, None, 4)
    with pytest.raises(ConfigError, match="differ right after they were made"):
        check_probe(3, Divergence((".params",), (1,), 0), 2)
