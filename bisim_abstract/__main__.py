"""`python -m bisim_abstract` is the command `bisim-abstract`."""

if __name__ == "__main__":
    from bisim_abstract._app.cli import console

    console()
