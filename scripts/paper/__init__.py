"""The paper's experiments, one module each; `scripts/reproduce.py` runs them.

`engine` judges claims, which experiments state as data; `page` writes the documentation page;
`grid`, `planted` and `restricted` hold what several experiments measure alike; `inside` names what
they use of the package beyond its public surface.
"""
