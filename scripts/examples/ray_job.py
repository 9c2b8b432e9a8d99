"""gcbench on the nodes of a Ray cluster, with torchrun on each:

    ray job submit --working-dir . -- python ray_job.py compressor=powersgd rank=2 outputs=/outputs

/outputs is a folder that all nodes share; the same job continues a run that is there.
"""

import subprocess
import sys

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

NODES, GPUS, PORT = 2, 8, 29400


@ray.remote(max_retries=0)
def address():
    return ray.util.get_node_ip_address()


@ray.remote(max_retries=0)
def torchrun(node, host, typed):
    command = [sys.executable, "-m", "torch.distributed.run"]
    command += ["--nnodes", str(NODES), "--node-rank", str(node), "--nproc-per-node", str(GPUS)]
    command += ["--master-addr", host, "--master-port", str(PORT)]
    command += ["-m", "gcbench", f"trainer.workers={NODES * GPUS}", *typed]
    subprocess.run(command, check=True)


def main(typed):
    ray.init()
    group = placement_group([{"CPU": 1, "GPU": GPUS}] * NODES, strategy="STRICT_SPREAD")
    ray.get(group.ready())

    def on(node, task, gpus):
        place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=node)
        return task.options(num_cpus=1, num_gpus=gpus, scheduling_strategy=place)

    host = ray.get(on(0, address, 0).remote())
    ray.get([on(node, torchrun, GPUS).remote(node, host, typed) for node in range(NODES)])


if __name__ == "__main__":
    main(sys.argv[1:])
