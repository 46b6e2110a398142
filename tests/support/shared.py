"""What every backend must give alike: the parts of certificates as one list."""

from __future__ import annotations

from typing import Any

from bisim_abstract import (
    Certificate,
)


def parts(certificate: Certificate) -> dict[str, Any]:
    """Everything that is claimed, as bytes."""
    found: dict[str, Any] = {
        name: getattr(certificate, name).tobytes()
        for name in ("keys", "lower", "upper", "labels_lower", "labels_upper")
    }
    found |= {"tau": certificate.tau, "stop": certificate.stop}
    for k, level in enumerate(certificate.levels):
        for name in ("keys", "lower", "upper"):
            found[f"level {k} {name}"] = getattr(level, name).tobytes()
        found[f"level {k} labels"] = level.model.labels.tobytes()
    if certificate.features is not None:
        found["features"] = certificate.features.values.tobytes()
        found["corrections"] = certificate.features.corrections.tobytes()
    return found
