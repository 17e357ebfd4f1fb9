import importlib.util

import pytest

import ksim
from examples.minimal import CrawlerTask
from ksim import ConfigError
from ksim.parallel.job import Job, find_job, local_gpu_ids

SLURM = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "node[1-2]", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4",
    "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
OPEN_MPI_5 = OPEN_MPI | {
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-node-1234@1",
}
KUBERNETES = {"KUBERNETES_SERVICE_HOST": "k", "JOB_COMPLETION_INDEX": "3"}
LAUNCHED = {
    "KSIM_COORDINATOR_ADDRESS": "127.0.0.1:4000", "KSIM_NUM_PROCESSES": "2", "KSIM_PROCESS_ID": "1",
    "KSIM_LOCAL_PROCESS_ID": "1", "KSIM_NUM_LOCAL_PROCESSES": "2",
}  # fmt: skip
TORCHRUN = {
    "WORLD_SIZE": "4", "RANK": "3", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "node0",
    "MASTER_PORT": "29400", "TORCHELASTIC_USE_AGENT_STORE": "True",
}  # fmt: skip
BY_PYTORCH = {k: v for k, v in TORCHRUN.items() if k in ("WORLD_SIZE", "RANK", "MASTER_ADDR")}
OF_JAX = {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1", "JAX_COORDINATOR_ADDRESS": "node0:4000"}
JAX_LAUNCHER = "a launcher (JAX_NUM_PROCESSES)"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        # At MASTER_PORT torchrun's own store listens.
        (TORCHRUN, Job("torchrun", "node0:29401", 4, 3, 1, 2)),
        (TORCHRUN | {"MASTER_PORT": "65535"}, Job("torchrun", "node0:65534", 4, 3, 1, 2)),
        (TORCHRUN | {"MASTER_ADDR": "fe80::1"}, Job("torchrun", "[fe80::1]:29401", 4, 3, 1, 2)),
        (BY_PYTORCH, Job("torchrun", "node0:29500", 4, 3)),
        (BY_PYTORCH | {"LOCAL_RANK": "1", "MASTER_PORT": "1"}, Job("torchrun", "node0:1", 4, 3, 1)),
        # Torchrun on each of two nodes, started there by srun.
        (SLURM | {"SLURM_STEP_NUM_TASKS": "2"} | TORCHRUN, Job("torchrun", "node0:29401", 4, 3, 1, 2)),
        (TORCHRUN | {"WORLD_SIZE": "1", "RANK": "0"}, None),
        (SLURM | {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "a"}, Job("Slurm", None, 4, 3, 1, 2)),
        (SLURM | {"WORLD_SIZE": "4", "MASTER_ADDR": "node0"}, Job("Slurm", None, 4, 3, 1, 2)),
        (OF_JAX, Job(JAX_LAUNCHER, "node0:4000", 2, 1)),
        (SLURM | OF_JAX, Job(JAX_LAUNCHER, "node0:4000", 2, 1, 1, 2)),
        (SLURM | {"JAX_COORDINATOR_ADDRESS": "node0:4000"}, Job("Slurm", "node0:4000", 4, 3, 1, 2)),
        (SLURM | {"JAX_NUM_PROCESSES": "1"}, None),
        (SLURM | {"PMI_SIZE": "4", "PMI_RANK": "3"}, Job("Slurm", None, 4, 3, 1, 2)),
        ({"PMI_SIZE": "1", "PMI_RANK": "0"}, None),
        ({"MASTER_ADDR": "node0", "MASTER_PORT": "1"}, None),
        (SLURM, Job("Slurm", None, 4, 3, 1, 2)),
        (OPEN_MPI, Job("Open MPI", None, 4, 2, 0, 2)),
        # Version 5 on one machine, which does not say where the first process listens.
        (OPEN_MPI_5, Job("Open MPI", "127.0.0.1:64104", 4, 2, 2, 4)),
        (OPEN_MPI_5 | {"OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.1:1"}, Job("Open MPI", None, 4, 2, 2, 4)),
        # mpirun in an allocation of Slurm's, on a node where srun has started its helper, one to a node.
        (SLURM | {"SLURM_LOCALID": "0"} | OPEN_MPI, Job("Open MPI", None, 4, 2, 0, 2)),
        (LAUNCHED, Job("ksim.launch", "127.0.0.1:4000", 2, 1, 1, 2)),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, Job("TPU pod")),
        # A batch script of a job with four tasks is itself one process; so is a pod of a plain deployment.
        ({k: v for k, v in SLURM.items() if k != "SLURM_STEP_NUM_TASKS"}, None),
        ({"OMPI_COMM_WORLD_SIZE": "1"}, None),
        ({"KUBERNETES_SERVICE_HOST": "k"}, None),
        (LAUNCHED | {"KSIM_NUM_PROCESSES": "1"}, None),
    ],
)
def test_job_is_found_in_the_environment(environ, expected, recwarn):
    assert find_job(environ=environ) == expected
    assert not recwarn.list


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 describe a job of several processes, but RANK and MASTER_ADDR must be set"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "WORLD_SIZE=2 and RANK=0 .* but MASTER_ADDR must be set as well to join it"),
        ({"JAX_NUM_PROCESSES": "2"}, "JAX_NUM_PROCESSES=2 .* but JAX_PROCESS_ID and JAX_COORDINATOR_ADDRESS must be"),
        ({"JAX_COORDINATOR_ADDRESS": "a:1"}, "but JAX_NUM_PROCESSES and JAX_PROCESS_ID must be set as well"),
        (
            {"PMI_SIZE": "4", "PMI_RANK": "3"},
            r"MPICH or Intel MPI has started 4 processes \(PMI_SIZE\).*"
            r"coordinator_address=HOST:PORT num_processes=4 process_id=N, which is PMI_RANK \(3\) here",
        ),
        ({"MV2_COMM_WORLD_SIZE": "2"}, r"MVAPICH has started 2 processes .* MV2_COMM_WORLD_RANK \(unset\)"),
    ],
)
def test_signs_of_a_job_that_cannot_be_joined_are_a_warning_unless_it_is_said_by_hand(environ, message, recwarn):
    with pytest.warns(UserWarning, match=message) as given:
        assert find_job(environ=environ) is None
    assert str(given[0].message).endswith("This process runs alone. If that is intended, add num_processes=1.")
    assert given[0].filename == __file__
    assert find_job(num_processes=1, environ=environ) is None
    assert find_job("node:1", 2, 0, environ) == Job("options", "node:1", 2, 0)
    assert not recwarn.list


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (TORCHRUN | {"RANK": "three"}, r"RANK \('three'\) must be a whole number\."),
        (TORCHRUN | {"RANK": "-1"}, r"RANK \('-1'\) must be a whole number\."),
        (TORCHRUN | {"RANK": "4"}, r"RANK \(4\) must be from 0 to WORLD_SIZE - 1 \(3\)\."),
        (TORCHRUN | {"WORLD_SIZE": "1e3"}, r"WORLD_SIZE \('1e3'\) must be a whole number\."),
        (TORCHRUN | {"LOCAL_RANK": "2"}, r"LOCAL_RANK \(2\) must be from 0 to LOCAL_WORLD_SIZE - 1 \(1\)\."),
        (
            TORCHRUN | {"MASTER_PORT": "http"},
            r"MASTER_ADDR and MASTER_PORT \('node0:http'\) must be of the form HOST:PORT",
        ),
        (OF_JAX | {"JAX_PROCESS_ID": "2"}, r"JAX_PROCESS_ID \(2\) must be from 0 to JAX_NUM_PROCESSES - 1 \(1\)\."),
        (OF_JAX | {"JAX_COORDINATOR_ADDRESS": "node0"}, r"JAX_COORDINATOR_ADDRESS \('node0'\) must be of the form"),
        (TORCHRUN | {"MASTER_ADDR": "a..b"}, r"MASTER_ADDR and MASTER_PORT \('a\.\.b:\d+'\) must be of the form"),
    ],
)
def test_malformed_variables_of_a_job_are_an_error_unless_it_is_said_by_hand(environ, message):
    with pytest.raises(ConfigError, match=message):
        find_job(environ=environ)
    assert find_job(num_processes=1, environ=environ) is None
    assert find_job("node:1", 2, 0, environ) == Job("options", "node:1", 2, 0)


def test_pod_of_an_indexed_job_finds_the_others_where_it_can_and_warns_where_not(monkeypatch):
    find_spec = importlib.util.find_spec
    for installed in (object(), None):
        found = lambda name, x=installed: x if name == "kubernetes" else find_spec(name)
        monkeypatch.setattr(importlib.util, "find_spec", found)
        if installed is not None:
            assert find_job(environ=KUBERNETES) == Job("Kubernetes", process_id=3)
        else:
            with pytest.warns(UserWarning, match=r"it runs alone\. To join them: pip install 'jax\[k8s\]'"):
                assert find_job(environ=KUBERNETES) is None
    assert find_job(num_processes=1, environ=KUBERNETES) is None


def test_task_of_one_device_under_a_launcher_is_an_error(monkeypatch):
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"runs in one process on one device, but ksim\.launch has started several"):
        CrawlerTask(ksim.PPOConfig()).layout  # noqa: B018


def test_options_come_before_the_environment_and_can_deny_it():
    assert find_job("node:1", 2, 0, {}) == find_job("node:1", 2, 0, LAUNCHED) == Job("options", "node:1", 2, 0)
    assert find_job("node:1", 2, 0, SLURM) == Job("options", "node:1", 2, 0, 1, 2)
    assert find_job(num_processes=1, environ=SLURM) is None
    assert find_job("node:1", environ=OPEN_MPI) == Job("Open MPI", "node:1", 4, 2, 0, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("node:1", None, None), r"coordinator_address \(node:1\) needs num_processes and process_id, unless Slurm"),
        (("node:1", 2, None), "process_id must be set as well"),
        ((None, 2, 0), "coordinator_address must be set as well"),
        ((None, None, 0), "coordinator_address and num_processes must be set as well"),
        (("node", 2, 0), r"coordinator_address \('node'\) must be of the form HOST:PORT"),
        (("node:0", 2, 0), r"must be of the form HOST:PORT"),
        (("a..b:1234", 2, 1), r"coordinator_address \('a\.\.b:1234'\) must be of the form HOST:PORT"),
        (("x" * 64 + ":1234", 2, 1), r"must be of the form HOST:PORT"),
        (("node:1", 2, 2), r"process_id \(2\) must be from 0 to num_processes - 1 \(1\)"),
        (("node:1", 2, -1), r"process_id \(-1\) must be from 0"),
    ],
)
def test_options_that_do_not_make_a_job_are_an_error(options, message):
    with pytest.raises(ConfigError, match=message):
        find_job(*options, environ={})


@pytest.mark.parametrize(
    ("job", "environ", "expected"),
    [
        (Job("Slurm", None, 2, 1, 0, 1), {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, [0, 1, 2, 3]),
        (Job("Slurm", None, 4, 3, 1, 2), {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, [2, 3]),
        (Job("Slurm", None, 4, 3, 1, 2), {"CUDA_VISIBLE_DEVICES": "0", "SLURM_GPUS_PER_TASK": "1"}, [0]),
        (Job("Slurm", None, 4, 3, 1, 2), {"CUDA_VISIBLE_DEVICES": ""}, []),
        # Not None: under Slurm JAX would take the GPU of the process's local number.
        (Job("ksim.launch", "a:1", 2, 1, 1, 2), {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, [0, 1]),
        (Job("options", "a:1", 2, 1), {"CUDA_VISIBLE_DEVICES": "2,3"}, [0, 1]),
        (Job("TPU pod"), {}, None),
        (Job("Kubernetes", process_id=1), {"CUDA_VISIBLE_DEVICES": "0,1"}, None),
        (Job("Slurm", None, 4, 3, 1, 2), {"CUDA_VISIBLE_DEVICES": "4,5", "SLURM_GPUS_PER_TASK": "2"}, [0, 1]),
        (Job("torchrun", "a:1", 8, 5, 1, 4), {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, [2, 3]),
        # A script that has set LOCAL_RANK alone, and one that has shown each process its GPU.
        (Job("torchrun", "a:1", 8, 5, 3), {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, [3]),
        (Job("torchrun", "a:1", 8, 5, 3), {"CUDA_VISIBLE_DEVICES": "3"}, [0]),
        (Job("torchrun", "a:1", 8, 5, 3), {"CUDA_VISIBLE_DEVICES": ""}, []),
        # What JAX itself is told of.
        (Job("Slurm", None, 4, 3, 1, 2), {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "JAX_LOCAL_DEVICE_IDS": "1"}, None),
        # A wrapper has bound each to one GPU, which it sees as its first.
        (Job("Open MPI", None, 4, 3, 3, 4), {"CUDA_VISIBLE_DEVICES": "3"}, [0]),
    ],
)
def test_gpus_of_a_machine_are_divided_among_its_processes_unless_someone_did(job, environ, expected):
    assert local_gpu_ids(job, environ) == expected


def test_gpus_that_do_not_divide_are_an_error():
    with pytest.raises(ConfigError, match=r"Number of GPUs \(3\) must be divisible by .* on this machine \(2\)"):
        local_gpu_ids(Job("Slurm", None, 4, 3, 1, 2), {"CUDA_VISIBLE_DEVICES": "0,1,2"})
