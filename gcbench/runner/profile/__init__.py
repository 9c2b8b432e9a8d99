"""`gcbench.profile`: whether compression pays in a training loop of one's own."""
