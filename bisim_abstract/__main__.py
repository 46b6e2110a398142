"""`python -m bisim_abstract` is the command `bisim-abstract`."""

from bisim_abstract._app.cli import console

if __name__ == "__main__":
    console()
