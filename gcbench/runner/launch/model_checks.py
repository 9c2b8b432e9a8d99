"""What a run asks of its model."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import nn

from gcbench.core.errors import ConfigError
from gcbench.core.parameters import refuse_complex, refuse_sparse
from gcbench.runner.data import Data
from gcbench.runner.launch.instantiate import make_model, user_code_error
from gcbench.runner.launch.plan import Plan
from gcbench.runner.settings.config import RunConfig
from gcbench.runner.settings.open import is_ours
from gcbench.runner.train.replica import is_recurrent


def checked_model(config: RunConfig, plan: Plan, data: Data) -> nn.Module:
    """Return the model of a run; raise ConfigError for one that cannot be trained on the data.

    It has no memory for weights, but a user's own has: its constructor may need real tensors, and
    it is tried on two samples.
    """
    named, users = f"model={config.choices['model']}", not is_ours(config.model.target)
    with nullcontext() if users else torch.device("meta"):
        model = make_model(config.model.as_dict(), data.shape, data.outputs)
    if not any(p.requires_grad for p in model.parameters()):
        raise ConfigError(f"{named} has no parameters to train; type another model=")
    refuse_complex({name: p for name, p in model.named_parameters() if p.requires_grad})
    refuse_sparse(model)
    if users:
        _check_outputs(config, model.to(plan.device), data)
    if is_recurrent(model) and config.trainer.accumulate > 1:
        raise ConfigError(
            f"trainer.accumulate={config.trainer.accumulate}: {named} carries hidden state for "
            "every column of its batch; type trainer.accumulate=1"
        )
    return model


@torch.no_grad()
def _check_outputs(config: RunConfig, model: nn.Module, data: Data) -> None:
    """Refuse a user's model that fails on the data, or whose outputs do not fit the loss."""
    trainer, choices = config.trainer, config.choices
    name = f"model={choices['model']}"
    batch = data.batch(
        epoch=0,
        step=0,
        worker=0,
        workers=trainer.workers,
        batch_size=trainer.batch_size,
        seed=config.seed,
    )
    inputs, targets = (tensor[:2].to(next(model.parameters()).device) for tensor in batch)
    recurrent = is_recurrent(model)
    try:
        result = model.eval()(inputs, None) if recurrent else model.eval()(inputs)
    except Exception as error:
        what = f"{name} on inputs of shape {tuple(inputs.shape)} from dataset={choices['dataset']}"
        raise ConfigError(user_code_error(what, error)) from error
    outputs = result[0] if recurrent and isinstance(result, tuple) else result
    if not isinstance(outputs, torch.Tensor):
        raise ConfigError(
            f"{name} returns a {type(outputs).__name__}; let its forward return a tensor of outputs"
        )
    if data.task == "regression":
        fits = outputs.numel() == targets.numel()
    else:
        fits = (
            outputs.dim() > 1
            and outputs.shape[:-1].numel() == targets.numel()
            and outputs.shape[-1] >= data.outputs
        )
    if not fits:
        wanted = (
            (*targets.shape, data.outputs) if data.task != "regression" else tuple(targets.shape)
        )
        raise ConfigError(
            f"{name} returns outputs of shape {tuple(outputs.shape)} where "
            f"dataset={choices['dataset']} needs {wanted}; let it take an argument outputs, which "
            f"is {data.outputs} here, or type another dataset="
        )
