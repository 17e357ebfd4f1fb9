"""Option names of other launchers and frameworks, with ksim's own."""

_START = "python -m ksim.launch --nproc-per-node N -m MODULE"
_GPUS = "Here it is CUDA_VISIBLE_DEVICES=0,1 before the command; every process gets its share of them."

_HINTS = {
    "nproc_per_node nprocs np ntasks_per_node": (
        f"Processes are started by {_START}.",
        "Here it is --nproc-per-node N.",
    ),
    "nnodes num_nodes num_machines nodes": (
        "Machines are counted by python -m ksim.launch --nnodes N, run on each of them.",
        "Here it is --nnodes N.",
    ),
    "node_rank machine_rank": (
        "Machines are numbered by python -m ksim.launch --node-rank N, processes by process_id=N.",
        "Here it is --node-rank N.",
    ),
    "master_addr master_address master_port main_process_ip main_process_port rdzv_endpoint dist_url": (
        "Here it is coordinator_address=HOST:PORT, where process 0 listens.",
        "Here it is --coordinator-address HOST:PORT, where process 0 listens.",
    ),
    "world_size num_procs": (
        "Here it is num_processes=N, for a job that is joined by hand.",
        "Here it is --nnodes N and --nproc-per-node M, for N times M processes.",
    ),
    "rank global_rank local_rank": (
        "Here it is process_id=N, for a job that is joined by hand.",
        "Here machines have a --node-rank N, and processes are numbered by the launcher.",
    ),
    "gpu_ids gpus gpu gpu_id device_ids device cuda": (
        "Here it is devices=all, devices=cpu, or devices=[0,1], by index.",
        f"{_GPUS} For none, add devices=cpu after the program's name.",
    ),
    "num_gpus n_gpus ngpus n_gpu gpus_per_node": ("Here it is num_devices=N, of each process.", _GPUS),
    "distributed multi_gpu ddp data_parallel": (
        f"A DistributedPPOTask needs none to train on all devices; several processes are started by {_START}.",
        "Here it needs none: all processes that it starts train together.",
    ),
}
"""By foreign option names: a hint for the command line of a task, and one for that of the launcher."""


def hint(name: str, *, to_launcher: bool = False) -> str:
    """A sentence with ksim's own name for an option of another launcher or framework; empty for any other name.

    Args:
        name: The option, with or without dashes.
        to_launcher: Whether it was passed to `ksim.launch` instead of a task.
    """
    plain = name.lstrip("-").replace("-", "_").lower()
    return next((hints[to_launcher] for names, hints in _HINTS.items() if plain in names.split()), "")
