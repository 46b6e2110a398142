"""Turn a finite Gymnasium environment into a smaller one, with a proof.

In the order in which one meets them:

- `abstract_env`, all of what follows in one call.
- `TabularMDP`, the immutable model that everything reads; `bisim_abstract.wrappers.extract_mdp`
  makes one of an environment as a `Reading` says, `read_model` of a file, `estimate_mdp` of
  experience; `bisim_abstract.wrappers.ModelEnv` is an environment of one.
- `certify`, bounds on the bisimulation metric of all pairs of states and the clusters that follow,
  as a `Certificate` (with its `Verdict`, `Frontier` and `ProvenValue`), by the method `Blocks` or
  `Covering`, with the `Resources` it may use; `verify` checks one by code that did not make it.
- `aggregate`, the model over clusters; `lift_policy`, its policies on the states; `value_loss`,
  what these lose; `prove_value`, what a policy over any partition keeps, proven.
  `bisim_abstract.wrappers.AbstractedEnv` is all of this as an environment for agents, and
  `GroundAgent` what they learned there, acting on the environment itself.
- `compare_abstractions`, what planning on clusters loses, beside uncertified clusterings;
  `evaluate_embedding`, how well an embedding imitates the metric and what it is trained for
  (learned ones live in `bisim_abstract.encoders`); `QLearning` and `learning_curve`, a yardstick
  for agents.
- `compare_models`, how far apart two models are: a simulator and the real thing, or an environment
  before and after a change.
- `bisimulation_classes`, which states are exactly alike; `bisimulation_metric`, how alike all
  others are, for the values of one policy if the model is `TabularMDP.under_policy`;
  `value_iteration` and `evaluate_policy`, certified values; `mico_distance`, what encoders of MICo
  are trained for.
- `write_report`, all of it on one page that opens offline; `state_map`, where to draw states;
  pictures are methods of a certificate, and `plot_curves`, `plot_losses`, `plot_embedding`.
- `write_model` and `write_clusters`, models and certified clusters for other programs.

The parts that these are made of (proposals, blocks, features, retrieval, transport, generators of
models) are in `bisim_abstract.parts`, all errors in `bisim_abstract.errors`.

Importing this package registers `bisim_abstract/RoomsGrid-v0` and `bisim_abstract/Model-v0` with
Gymnasium and loads neither torch, faiss, numba nor matplotlib.

Example:
    >>> from bisim_abstract import bisimulation_metric
    >>> from bisim_abstract.parts import sparse_mdp
    >>> metric = bisimulation_metric(sparse_mdp(20, seed=0), 0.9)
    >>> metric.is_converged
    True
"""

import importlib
from typing import TYPE_CHECKING, Any

from bisim_abstract import errors as errors
from bisim_abstract._base import starting as _starting  # takes effect: what follows takes a moment
from bisim_abstract._register import register_envs
from bisim_abstract._version import __version__ as __version__

register_envs()
del register_envs, _starting

__all__ = [
    "AbstractionLoss",
    "Aggregation",
    "BisimError",
    "BisimulationClasses",
    "Blocks",
    "Certificate",
    "Covering",
    "Curve",
    "Frontier",
    "GroundAgent",
    "InvalidArgumentError",
    "MetricBounds",
    "ModelComparison",
    "NotCertifiedError",
    "ProvenValue",
    "QLearning",
    "RayBackend",
    "Reading",
    "Resources",
    "StateMap",
    "TabularMDP",
    "ValueLoss",
    "Values",
    "Verdict",
    "Verification",
    "abstract_env",
    "aggregate",
    "bisimulation_classes",
    "bisimulation_metric",
    "certify",
    "compare_abstractions",
    "compare_models",
    "estimate_mdp",
    "evaluate_embedding",
    "evaluate_policy",
    "learning_curve",
    "lift_policy",
    "mico_distance",
    "plot_curves",
    "plot_embedding",
    "plot_losses",
    "prove_value",
    "read_model",
    "state_map",
    "value_iteration",
    "value_loss",
    "verify",
    "write_clusters",
    "write_model",
    "write_report",
]

if TYPE_CHECKING:
    from bisim_abstract._abstract.aggregate import Aggregation, aggregate, lift_policy
    from bisim_abstract._abstract.deploy import GroundAgent
    from bisim_abstract._abstract.value import ProvenValue
    from bisim_abstract._abstract.value_loss import ValueLoss, value_loss
    from bisim_abstract._abstract.value_proof import prove_value
    from bisim_abstract._app.abstract_env import abstract_env
    from bisim_abstract._app.estimating import estimate_mdp
    from bisim_abstract._app.plots import plot_curves, plot_embedding, plot_losses
    from bisim_abstract._app.report import write_report
    from bisim_abstract._app.state_map import StateMap, state_map
    from bisim_abstract._base.ray import RayBackend
    from bisim_abstract._base.reading import Reading
    from bisim_abstract._base.resources import Resources
    from bisim_abstract._certificate.certificate import Certificate
    from bisim_abstract._certificate.cluster_files import write_clusters
    from bisim_abstract._certificate.frontier import Frontier
    from bisim_abstract._certificate.verdict import Verdict
    from bisim_abstract._compare.embeddings import evaluate_embedding
    from bisim_abstract._compare.learning import Curve, QLearning, learning_curve
    from bisim_abstract._compare.losses import AbstractionLoss, compare_abstractions
    from bisim_abstract._compare.models import ModelComparison, compare_models
    from bisim_abstract._exact.classes import BisimulationClasses, bisimulation_classes
    from bisim_abstract._exact.metric import MetricBounds, bisimulation_metric
    from bisim_abstract._exact.mico import mico_distance
    from bisim_abstract._exact.planning import Values, evaluate_policy, value_iteration
    from bisim_abstract._model.export import write_model
    from bisim_abstract._model.files import read_model
    from bisim_abstract._model.mdp import TabularMDP
    from bisim_abstract._prove.blocks import Blocks
    from bisim_abstract._prove.certify import certify
    from bisim_abstract._prove.covering import Covering
    from bisim_abstract._verify.verify import Verification, verify
    from bisim_abstract.errors import BisimError, InvalidArgumentError, NotCertifiedError
else:
    # Where each name lives. Modules are imported when one of their names is first used: the
    # command line answers `--help` without them.
    _MODULES = {
        "_abstract.aggregate": ("Aggregation", "aggregate", "lift_policy"),
        "_abstract.deploy": ("GroundAgent",),
        "_abstract.value": ("ProvenValue",),
        "_abstract.value_loss": ("ValueLoss", "value_loss"),
        "_abstract.value_proof": ("prove_value",),
        "_app.abstract_env": ("abstract_env",),
        "_app.estimating": ("estimate_mdp",),
        "_app.plots": ("plot_curves", "plot_embedding", "plot_losses"),
        "_app.report": ("write_report",),
        "_app.state_map": ("StateMap", "state_map"),
        "_base.ray": ("RayBackend",),
        "_base.reading": ("Reading",),
        "_certificate.certificate": ("Certificate",),
        "_certificate.cluster_files": ("write_clusters",),
        "_certificate.frontier": ("Frontier",),
        "_certificate.verdict": ("Verdict",),
        "_compare.embeddings": ("evaluate_embedding",),
        "_compare.learning": ("Curve", "QLearning", "learning_curve"),
        "_compare.losses": ("AbstractionLoss", "compare_abstractions"),
        "_compare.models": ("ModelComparison", "compare_models"),
        "_exact.classes": ("BisimulationClasses", "bisimulation_classes"),
        "_exact.metric": ("MetricBounds", "bisimulation_metric"),
        "_exact.mico": ("mico_distance",),
        "_exact.planning": ("Values", "evaluate_policy", "value_iteration"),
        "_model.export": ("write_model",),
        "_model.files": ("read_model",),
        "_model.mdp": ("TabularMDP",),
        "_base.resources": ("Resources",),
        "_prove.blocks": ("Blocks",),
        "_prove.certify": ("certify",),
        "_prove.covering": ("Covering",),
        "_verify.verify": ("Verification", "verify"),
        "errors": ("BisimError", "InvalidArgumentError", "NotCertifiedError"),
    }
    _HOMES = {name: module for module, names in _MODULES.items() for name in names}

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOMES})
