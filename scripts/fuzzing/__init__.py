"""What `scripts/fuzz.py` is made of: cases, mutations, random models, slow oracles, targets."""
