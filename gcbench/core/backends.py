"""The choice of codecs: eager, native or compiled."""

from __future__ import annotations

from gcbench.core.codecs.kernels import Backend
from gcbench.core.errors import ConfigError


def choose_codec_backend(asked: str, device: str, compiler: bool, key: str) -> Backend:
    """Return the codec backend. Raises ConfigError if it is not available."""
    if asked not in ("auto", "eager", "compiled"):
        raise ConfigError(f"{key}={asked}: type auto, eager or compiled")
    if asked == "compiled" and not compiler:
        raise ConfigError(
            f"{key}=compiled: there is no C++ compiler here; install g++, or type {key}=eager"
        )
    if asked == "eager" or not compiler:
        return "eager"
    return "compiled" if device == "cuda" else "native"
