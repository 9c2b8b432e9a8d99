"""For all tests."""

import torch

# As in the processes that tests start: small tensors gain nothing from more, and some sums and factorisations round by them.
torch.set_num_threads(1)
