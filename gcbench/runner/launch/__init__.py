"""Start the workers of a run, or join workers that torchrun or srun started."""
