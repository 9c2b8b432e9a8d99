"""The notes below predicted steps."""

from __future__ import annotations

from gcbench.predict.command import Predict
from gcbench.predict.devices import OTHER
from gcbench.predict.model import Method
from gcbench.predict.scenario import Scenario
from gcbench.predict.units import format_seconds


def notes_of(arguments: Predict, scenario: Scenario) -> list[str]:
    """Return what a prediction assumes, leaves out or does not know, one sentence or two each."""
    notes = [
        f"Predicted with device {arguments.device}. The bound is a step without exchange and "
        f"codec: {format_seconds(scenario.compute.seconds)}."
        + (" With every=H a step is the mean of H." if max(arguments.every) > 1 else "")
    ]
    if arguments.others:
        notes.append(
            f"Codec seconds are those of device {arguments.device}, which do not depend on the "
            f"knobs ({', '.join(arguments.others)}); what is sent does."
        )
    sent_whole = _sent_whole(arguments, scenario)
    if small := [method.title for method in sent_whole if method.too_small]:
        notes.append(
            f"No fewer bits than fp32: {', '.join(small)}. Tensors of fewer than min_size values "
            "are sent whole; type min_size=0 to compress them, too."
        )
    if others := [method.title for method in sent_whole if not method.too_small]:
        notes.append(
            f"No fewer bits than fp32: {', '.join(others)}. With these knobs they send that much "
            "of such tensors."
        )
    if scenario.guessed:
        notes.append(
            f"Codec seconds are the device's guess for any method ({OTHER}), and may be far off, "
            f"of: {', '.join(scenario.guessed)}. Time them: gcbench bench, gcbench predict measure."
        )
    if scenario.untimed:
        notes.append(
            f"Left out, as device={arguments.device} has no codec seconds of them: "
            f"{', '.join(scenario.untimed)}. Time them: gcbench bench, gcbench predict measure."
        )
    if scenario.left_out:
        reasons = "; ".join(f"{name} ({why})" for name, why in scenario.left_out.items())
        notes.append(f"Left out, as they cannot be predicted there: {reasons}")
    return notes


def _sent_whole(arguments: Predict, scenario: Scenario) -> list[Method]:
    """Return the methods that compress nothing of this model between nodes."""
    workers = max(2, *arguments.workers)
    sent = {
        method: sum(m.bits for m in method.messages(workers) if m.level != "inside")
        for method in scenario.methods
        if method.family != "none"
    }
    return [method for method, bits in sent.items() if bits >= 8 * method.dense_bytes]
