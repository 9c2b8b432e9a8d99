"""The core: what compresses, for torch.distributed.

It needs torch, numpy, pydantic and yaml, and nothing of the runner or of the papers.
"""
