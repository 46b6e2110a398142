"""Models in PRISM's and JANI's languages, and Storm's DRN files, built by Storm.

Storm parses and explores; what it built comes over as UMB, which is read as any such file is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bisim_abstract._base.checks import require
from bisim_abstract._base.text import did_you_mean, plain_text
from bisim_abstract._base.untrusted import open_regular
from bisim_abstract._model.explicit import ExplicitModel
from bisim_abstract._model.umb import read_umb
from bisim_abstract.errors import FileFormatError, InvalidArgumentError

PRISM = (".nm", ".pm", ".sm", ".prism")
SUFFIXES = (*PRISM, ".jani", ".drn")
KINDS = ("DTMC", "MDP")
# Storm's label of the state that stands for all beyond a range, and its variable for that.
OUTSIDE, OUTSIDE_BIT = "out_of_bounds", "_OutOfBoundsBit"
Constant = bool | int | float | str


def build_model(
    path: str | Path, *, constants: Mapping[str, Constant] | None = None
) -> ExplicitModel:
    """Let Storm build the model of a file in one of its languages.

    Args:
        path: The file, whose ending says which language it is in.
        constants: Values of constants that the file leaves open.

    Raises:
        MissingDependency: If stormpy is not installed.
        FileFormatError: If Storm cannot read it, or it is no Markov chain or MDP.
        InvalidArgumentError: If constants are missing or unknown.
    """
    with open_regular(path):
        pass  # what is not there, or no file, is said to be so in our own words
    storm = require("stormpy", extra="prism")
    suffix = Path(path).suffix.lower()
    developer = require("stormpy.developer", extra="prism")
    level = developer.get_log_level()
    developer.set_log_level(developer.LogLevel.OFF)  # what it has to say comes as an error
    try:
        if suffix == ".drn":
            if constants:
                raise InvalidArgumentError(f"{path} is a DRN file, which has no constants to set")
            model = storm.build_model_from_drn(str(path))
        else:
            model = _build(storm, path, suffix, constants or {})
        with tempfile.TemporaryDirectory() as folder:
            passed = Path(folder) / "model.umb"
            options = storm.io.UmbExportOptions()
            options.compression = type(options.compression).NO_COMPRESSION
            storm.io.export_to_umb(model, str(passed), options=options)
            del model
            try:
                read = read_umb(passed)
                kept = tuple(v for v in read.variables if v.name != OUTSIDE_BIT)
                return replace(read, variables=kept)
            except FileFormatError as error:
                raise FileFormatError(str(error).replace(str(passed), str(path))) from error
    except (RuntimeError, TypeError, storm.exceptions.StormError) as error:
        said = plain_text(" ".join(str(error).split()))
        raise FileFormatError(f"Storm cannot build {path}: {said}") from error
    finally:
        developer.set_log_level(level)


def _build(storm: Any, path: str | Path, suffix: str, constants: Mapping[str, Constant]) -> Any:
    """The sparse model with all rewards, labels, variables and names of actions."""
    if suffix == ".jani":
        program, _ = storm.parse_jani_model(str(path))
    else:
        program = storm.parse_prism_program(str(path), prism_compatibility=True)
    kind = str(program.model_type).rpartition(".")[2]
    if kind not in KINDS:
        raise FileFormatError(f"{path} holds a {kind}; only Markov chains and MDPs are read")
    known = {constant.name: constant for constant in program.constants}
    open_names = [name for name, constant in known.items() if not constant.defined]
    for name in constants:
        if name not in open_names:
            rule = "is set in the file" if name in known else "is unknown"
            listed = ", ".join(open_names) or "none"
            raise InvalidArgumentError(
                f"constant {name!r} of {path} {rule}; to be set are {listed}"
                + did_you_mean(name, open_names)
            )
    missing = [name for name in open_names if name not in constants]
    if missing:
        example = ", ".join(f"{name!r}: ..." for name in missing)
        raise InvalidArgumentError(
            f"{path} leaves constants open: {', '.join(missing)}; give them values by "
            f"constants={{{example}}}, on the command line by --const {missing[0]}=..."
        )
    program, _ = storm.instantiate_constants(program, dict(constants))
    options = storm.BuilderOptions()
    options.set_build_all_reward_models()
    options.set_build_all_labels()
    options.set_build_state_valuations()
    options.set_build_choice_labels()
    # A variable that leaves its range would spill into others; checks by Storm itself refuse sums
    # of probabilities that miss 1 by a rounding error.
    options.set_add_out_of_bounds_state()
    model = storm.build_model(program, options=options)
    if OUTSIDE in model.labeling.get_labels():
        raise FileFormatError(f"{path} lets a variable leave its range in a state that is reached")
    return model
