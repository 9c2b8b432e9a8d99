"""gcbench: compare gradient-compression methods by real data-parallel training."""
