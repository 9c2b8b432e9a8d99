"""Build a compressor from a method and the layers around it."""

from __future__ import annotations

from typing import Any

from typing_extensions import Unpack

from gcbench.core.codec import Codec
from gcbench.core.compressor import Compressor
from gcbench.core.fields import fields_as_arguments, own_fields
from gcbench.core.method_keys import LayerKeys
from gcbench.core.wrappers.conflicts import refuse_conflicts
from gcbench.core.wrappers.layers import LAYERS, Sending
from gcbench.core.wrappers.wrappers import CheckedGradients


@fields_as_arguments(Sending, *LAYERS)
def build(method: Compressor | Codec, **keys: Unpack[LayerKeys]) -> Compressor:
    """Return `method` as a compressor, inside the wrappers that the keys ask for.

        compressor = gcbench.build(QSGD(levels=7), error_feedback=True, clip_norm=1.0)
        compression = gcbench.compress(ddp, compressor)

    `LAYERS` (`gcbench.core.wrappers.layers`) has the keys and their order. Raises ValueError for a
    value outside its range, and for keys that contradict one another or the method.
    """
    given: dict[str, Any] = {**keys}
    sending = Sending(**own_fields(Sending, given))
    layers = [kind(**own_fields(kind, given)) for kind in LAYERS]
    asked = {key: value for layer in (sending, *layers) for key, value in vars(layer).items()}
    asked["method"] = method
    of_method = {key: getattr(method, key, None) for key in ("per_layer", "combine")}
    refuse_conflicts({**asked, **of_method})
    compressor = sending.send(method, asked)
    for layer in layers:
        compressor = layer.wrap(compressor, asked)
    return CheckedGradients(compressor)
